"""The file of answers that `train.regenerate` writes, block by block."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.text.tokenizer import Tokenizer
from train.data.answers import Conversation

_STATE = "written.json"
_CHUNK = 2**20  # bytes read at a time


def work_of(path: Path) -> Path:
    """Returns the work directory of a file of answers, unless another is named."""
    return path.with_name(path.name + ".work")


def unfinished(path: Path, work: Path | None = None) -> bool:
    """Returns True if a work directory knows a file of answers to which some are missing."""
    return ((work or work_of(path)) / _STATE).is_file()


def lines(conversations: Iterable[Conversation], tokenizer: Tokenizer) -> bytes:
    """Returns one record per answer, as `train.drafter` reads them."""
    records = []
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
            records.append(json.dumps(record).encode() + b"\n")
    return b"".join(records)


class _Content(NamedTuple):
    """The content of a file: bytes, their CRC-32, and answers."""

    size: int = 0
    crc: int = 0
    answers: int = 0

    def plus(self, lines: bytes) -> _Content:
        """Returns the content with further lines."""
        crc = zlib.crc32(lines, self.crc)
        return _Content(self.size + len(lines), crc, self.answers + lines.count(b"\n"))


class AnswerFile:
    """A file of whole lines: those of finished blocks, then a tail, the block in progress so far.

    The work directory records the content of the finished blocks, so that a file that was written
    by others, or changed, is told from one whose writer was killed. All answers are also in the log
    of the work directory, from which a run that goes on makes the same lines again.
    """

    def __init__(self, path: Path, work: Path):
        """Opens an unfinished file, or begins one.

        Args:
          path: the file.
          work: holds the record of its content.

        Raises:
          UserError: the file is not one that this work directory knows, or it was changed.
        """
        self._path, self._state = path, work / _STATE
        self._finished = _Content()
        self._again = 0  # bytes of finished blocks that this run has made again
        self._tail = 0  # answers after them
        if self._state.is_file():
            self._finished, content = _Content(*json.loads(self._state.read_text())), _Content()
            with path.open("rb") if path.exists() else io.BytesIO() as file:
                while part := file.read(min(_CHUNK, self._finished.size - content.size)):
                    content = content.plus(part)
                self._tail = file.read().count(b"\n")
            if content != self._finished:
                raise UserError(
                    f"{path} is not as it was when {self._finished.answers:,} answers had been "
                    f"written to it; put it back, or delete {work} and name another --out"
                )
        elif path.exists() and path.stat().st_size:
            raise UserError(f"--out {path} already exists; delete it or name another file")

    @property
    def answers(self) -> int:
        """Number of answers in the file."""
        return self._finished.answers + self._tail

    def add(self, lines: bytes) -> None:
        """Adds a finished block in place of the tail, or compares it with what is there.

        Raises:
          UserError: the file holds other answers at this place.
        """
        there = min(len(lines), self._finished.size - self._again)
        if there:
            with self._path.open("rb") as file:
                file.seek(self._again)
                if file.read(there) != lines[:there]:
                    raise UserError(self._other())
        self._again += len(lines)
        if there < len(lines):
            self._write(lines[there:])
            self._finished, self._tail = self._finished.plus(lines[there:]), 0
            self._record()

    def keep(self, tail: bytes) -> None:
        """Writes what is answered of the block in progress, if that is more than there is."""
        if self._again == self._finished.size and tail.count(b"\n") > self._tail:
            self._write(tail)
            self._tail = tail.count(b"\n")

    def check_whole(self) -> None:
        """Raises UserError if this run has not made all finished blocks again."""
        if self._again < self._finished.size:
            raise UserError(self._other())

    def _write(self, lines: bytes) -> None:
        """Writes lines after the finished blocks, in place of others."""
        self._record()  # from now on the file is known
        try:
            with self._path.open("r+b" if self._path.exists() else "wb") as file:
                file.truncate(self._finished.size)
                file.seek(self._finished.size)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            os.truncate(self._path, self._finished.size)  # no half a line
            raise

    def _record(self) -> None:
        write_atomically(self._state, json.dumps(self._finished).encode())

    def _other(self) -> str:
        return (
            f"the first records of --data are not those that {self._path} holds answers to; pass "
            "the same again to go on, more only behind them, or name another --out and --work"
        )
