"""The file of answers that `train.regenerate` writes, block by block."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.text.tokenizer import Tokenizer
from train.data.answers import Conversation
from train.data.examples import Example

_STATE = "written.json"
_TAIL = "tail"  # no data file by its name
_CHUNK = 2**20  # bytes read at a time


@dataclasses.dataclass(frozen=True)
class Written:
    """The blocks of a file that are finished.

    Attributes:
      records: number of records that were read for them.
      source: digest of these records.
      size: bytes of their answers.
      crc: CRC-32 of these bytes.
      answers: number of answers.
      tokens: number of their tokens.
      unfinished: number of answers that were cut off.
      skipped: number of records that were not, or not completely, answered.
      first_skipped: why the first of them was skipped.
    """

    records: int = 0
    source: str = ""
    size: int = 0
    crc: int = 0
    answers: int = 0
    tokens: int = 0
    unfinished: int = 0
    skipped: int = 0
    first_skipped: str = ""

    def with_records(self, records: Iterable[Example]) -> Written:
        """Returns the same after further records were read."""
        count, source = self.records, self.source
        for record in records:
            count += 1
            text = f"{source}{record.digest:016x}".encode()
            source = hashlib.blake2b(text, digest_size=16).hexdigest()
        return dataclasses.replace(self, records=count, source=source)

    def with_answers(self, conversations: Iterable[Conversation]) -> Written:
        """Returns the same with further answers."""
        made = [answer for conversation in conversations for answer in conversation.answers]
        return dataclasses.replace(
            self,
            answers=self.answers + len(made),
            tokens=self.tokens + sum(len(answer.tokens) for answer in made),
            unfinished=self.unfinished + sum(answer.finish == "length" for answer in made),
        )


def work_of(path: Path) -> Path:
    """Returns the work directory of a file of answers, unless another is named."""
    return path.with_name(path.name + ".work")


def unfinished(path: Path, work: Path | None = None) -> bool:
    """Whether a work directory knows a file of answers to which some are missing."""
    return any(((work or work_of(path)) / name).is_file() for name in (_STATE, _TAIL))


def lines(conversations: Iterable[Conversation], tokenizer: Tokenizer) -> bytes:
    """Returns one record per answer, as `train.drafter` reads them."""
    made = []
    for conversation in conversations:
        for answer in conversation.answers:
            tokens = [*answer.prompt, *answer.tokens]
            record = {
                "tokens": tokens,
                "prompt_length": len(answer.prompt),
                "text": tokenizer.decode(tokens, skip_special_tokens=False),
                "finish": answer.finish,
                "source": f"{conversation.digest:016x}",
            }
            made.append(json.dumps(record).encode() + b"\n")
    return b"".join(made)


class AnswerFile:
    """A file of whole lines: those of finished blocks, then a tail, the block in progress so far.

    The work directory records the finished blocks, and the tail before it is written, so that a
    file that was written by others, or changed, is told from one whose writer was killed.

    Attributes:
      written: the finished blocks.
    """

    def __init__(self, path: Path, work: Path):
        """Opens an unfinished file, or begins one.

        Args:
          path: the file.
          work: holds the records about it.

        Raises:
          UserError: the file is not one that this work directory knows, or it was changed.
        """
        self._path, self._state, self._tail = path, work / _STATE, work / _TAIL
        self.written = Written()
        if self._state.is_file():
            written = Written(**json.loads(self._state.read_text()))
            if written.answers:  # with other settings there may be some
                self.written = written
        self._check()

    @property
    def answers(self) -> int:
        """Number of answers in the file."""
        return self.written.answers + self.tail.count(b"\n")

    @property
    def tail(self) -> bytes:
        """What follows the finished blocks, if it is not torn."""
        longer = self._tail.is_file() and self._size() > self.written.size
        return self._tail.read_bytes() if longer else b""

    def add(self, lines: bytes, written: Written) -> None:
        """Replaces the tail by a finished block.

        Args:
          lines: its answers.
          written: all finished blocks, this one included; `size` and `crc` are set here.
        """
        self.replace_tail(lines)
        size, crc = self.written.size + len(lines), zlib.crc32(lines, self.written.crc)
        self.written = dataclasses.replace(written, size=size, crc=crc)
        write_atomically(self._state, json.dumps(dataclasses.asdict(self.written)).encode())
        self._tail.unlink()

    def replace_tail(self, lines: bytes) -> None:
        """Writes other lines after the finished blocks."""
        if self._size() not in (self.written.size, self.written.size + len(self.tail)):
            raise UserError(self._changed())
        if self._path.exists():
            os.truncate(self._path, self.written.size)
        write_atomically(self._tail, lines)
        if lines:
            try:
                with self._path.open("ab") as file:
                    file.write(lines)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                os.truncate(self._path, self.written.size)  # no half a line
                raise

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _check(self) -> None:
        """Checks that the file holds the finished blocks, then the tail, which is cut if torn."""
        size, tail = self.written.size, self.tail
        if not self._path.exists():
            if size:
                raise UserError(
                    f"{self._path} is gone, which held {self.written.answers:,} answers; put it "
                    f"back, or delete {self._state.parent} to begin anew"
                )
            return
        if not size and not self._tail.is_file():
            raise UserError(f"--out {self._path} already exists; delete it or name another file")
        crc = 0
        with self._path.open("rb") as file:
            for begin in range(0, size, _CHUNK):
                crc = zlib.crc32(file.read(min(_CHUNK, size - begin)), crc)
            rest = file.read(len(tail) + 1)
        if crc != self.written.crc or not tail.startswith(rest):
            raise UserError(self._changed())
        if rest != tail:  # torn
            os.truncate(self._path, size)

    def _changed(self) -> str:
        return (
            f"{self._path} is not as it was when {self.written.answers:,} answers had been written "
            f"to it; put it back, or delete {self._state.parent} and name another --out"
        )
