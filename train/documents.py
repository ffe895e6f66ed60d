"""The documents of a corpus, in one fixed order, whatever files they lie in.

Kept by its end, after a compression's (.gz, .bz2, .xz, .zst), a file is

    .jsonl .ndjson   one JSON record a line
    .json            an array of records, or records one after the other
    .parquet         a column
    anything else    one document of plain text

A record holds a text or a chat. A chat is a list of messages, `{"role": .., "content": ..}`, and
becomes text by a chat template. Text beyond `LONGEST` characters is cut at line ends into pieces,
which are encoded and counted by themselves, so that memory does not depend on the corpus (but for
one record, which is read whole). Empty documents are left out.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO, cast

import duckdb

from dart_jax.errors import UserError
from train.compression import COMPRESSIONS, decompressed

PARQUET = 256 * 10**6  # bytes for reading it, at least
LONGEST = 2**18  # characters; encoding takes some 100 bytes for each

_IN_DIRECTORIES = (".jsonl", ".ndjson", ".json", ".parquet", ".txt")
_CHUNK = 2**16  # characters read at a time
_BETWEEN = re.compile(r"[\s,]*")

# Messages -> text; raises if the template refuses them.
ChatTemplate = Callable[[list[dict[str, Any]]], str]


class Document(NamedTuple):
    """One document, or a piece of a long one.

    Attributes:
      text: UTF-8.
      chat: a chat template wrote it, with all special tokens but the end of the document.
      first: it begins the document.
      last: it ends the document.
    """

    text: bytes
    chat: bool = False
    first: bool = True
    last: bool = True


class Position(NamedTuple):
    """A place between two documents.

    Attributes:
      file: index of a file.
      document: how many documents of that file come before.
      read: bytes of all files before this place, as they lie on the disk.
    """

    file: int
    document: int
    read: int


START = Position(0, 0, 0)


class Unit(NamedTuple):
    """Documents that are counted together.

    Attributes:
      number: from 0, in the corpus's order.
      documents: at least one.
      end: where the next unit begins.
    """

    number: int
    documents: list[Document]
    end: Position


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Files and how to read them.

    Attributes:
      files: in the order they are read.
      field: of the records; None takes `messages` where a record has it, and else `text`.
      template: for chats; None where there is none.
      memory: bytes that reading Parquet may take.
    """

    files: tuple[Path, ...]
    field: str | None = None
    template: ChatTemplate | None = None
    memory: int = PARQUET

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.files)

    def fingerprint(self) -> str:
        """Tells one state of the files from another by their names, sizes and times."""
        digest = hashlib.sha256()
        for path in self.files:
            stat = path.stat()
            digest.update(json.dumps([str(path), stat.st_size, stat.st_mtime_ns]).encode())
        return digest.hexdigest()

    def documents(self, start: Position = START) -> Iterator[tuple[Document, Position]]:
        """Every document from `start` on, and the place behind it.

        Raises:
          UserError: a file cannot be read or a record is not what it should be; says where.
        """
        before = sum(path.stat().st_size for path in self.files[: start.file])
        for number, path in enumerate(self.files[start.file :], start.file):
            skipped = start.document if number == start.file else 0
            for i, (document, read) in enumerate(self._read(path)):
                if i >= skipped:
                    yield document, Position(number, i + 1, before + read)
            before += path.stat().st_size

    def units(
        self,
        size: int,
        *,
        start: Position = START,
        first: int = 0,
        limit: int | None = None,
    ) -> Iterator[Unit]:
        """The documents in units of about `size` bytes, a document never cut.

        Args:
          size: a unit ends with the document that reaches it.
          start: where to begin.
          first: number of the unit that begins there.
          limit: documents to take at most.
        """
        if limit == 0:
            return
        documents: list[Document] = []
        held, end = 0, start
        for count, (document, end) in enumerate(self.documents(start), 1):
            documents.append(document)
            held += len(document.text) + 64  # what it takes in memory beside its text
            if held >= size or count == limit:
                yield Unit(first, documents, end)
                documents, held, first = [], 0, first + 1
            if count == limit:
                return
        if documents:
            yield Unit(first, documents, end)

    def _read(self, path: Path) -> Iterator[tuple[Document, int]]:
        """Documents, and how many bytes of the file were read by then."""
        ending = _ending(path)
        try:
            if ending == ".parquet":
                yield from self._parquet(path)
                return
            with (
                path.open("rb") as raw,
                decompressed(raw, path) as stream,
                io.TextIOWrapper(stream, "utf-8-sig", newline="") as text,
            ):
                if ending in (".jsonl", ".ndjson"):
                    records = _json_lines(stream, path)
                elif ending == ".json":
                    records = _json_values(text, path)
                else:
                    for document in _pieces(text):
                        yield document, raw.tell()
                    return
                for line, record in records:
                    where = f"{path}:{line}"
                    for document in self._content(self._select(record, where), where):
                        yield document, raw.tell()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8 text ({error.reason}); convert it or leave it out"
            ) from None
        except duckdb.OutOfMemoryException:
            raise UserError(
                f"cannot read {path}: its row groups are too large for the memory; give more "
                "--memory, or write the file again with smaller ones"
            ) from None
        except (OSError, EOFError, zlib.error, lzma.LZMAError, duckdb.Error) as error:
            reason = str(error).split("\n", 1)[0]
            raise UserError(f"cannot read {path}: {reason}") from None

    def _select(self, record: Any, where: str) -> Any:
        """What a record holds in the wanted field."""
        if isinstance(record, str):
            return record
        if not isinstance(record, dict):
            raise UserError(f"{where}: a record must be an object, not {_kind(record)}")
        field = self._field(record, where)
        return record[field]

    def _field(self, names: Iterable[str], where: str) -> str:
        names = list(names)
        field = self.field or ("messages" if "messages" in names else "text")
        if field not in names:
            has = ", ".join(map(str, names[:8])) or "none"
            raise UserError(f"{where}: no field {field!r}; name one with --field (it has {has})")
        return field

    def _content(self, value: Any, where: str) -> Iterator[Document]:
        """The documents in one field: a text, a chat, or nothing."""
        if value is None:
            return
        if isinstance(value, str):
            text, chat = value, False
        elif isinstance(value, list):
            text, chat = self._render(value, where), True
        else:
            raise UserError(f"{where}: neither a text nor a list of messages, but {_kind(value)}")
        yield from _pieces(io.StringIO(text, newline=""), chat)

    def _render(self, messages: list[Any], where: str) -> str:
        if self.template is None:
            raise UserError(
                f"{where}: messages need a chat template, and the tokenizer has none; pass the "
                "directory of a tokenizer with one, or --field with a field that holds text"
            )
        for message in messages:
            if not isinstance(message, dict) or "role" not in message:
                raise UserError(f"{where}: every message must be an object with a role")
        # Parquet fills the fields that a message lacks; none is a content, beside tool calls.
        messages = [
            {
                name: value
                for name, value in message.items()
                if value is not None or name == "content"
            }
            for message in messages
        ]
        try:
            return self.template(messages)
        except Exception as error:  # a template may raise anything
            raise UserError(f"{where}: the chat template refuses the messages: {error}") from None

    def _parquet(self, path: Path) -> Iterator[tuple[Document, int]]:
        size = path.stat().st_size
        with duckdb.connect(config={"threads": 1, "memory_limit": f"{self.memory}B"}) as database:
            # As a value, so that no letter of the name means anything.
            source = [glob.escape(str(path))]
            described = database.execute("describe select * from read_parquet($1)", [source])
            column = self._field([name for name, *_ in described.fetchall()], str(path))
            quoted = '"' + column.replace('"', '""') + '"'
            counted = database.execute("select count(*) from read_parquet($1)", [source])
            rows = cast(tuple, counted.fetchone())[0]
            database.execute(f"select {quoted} from read_parquet($1)", [source])
            row = 0
            while batch := database.fetchmany(64):
                for (value,) in batch:
                    row += 1
                    for document in self._content(value, f"{path}, row {row}"):
                        yield document, size * row // rows


def find_files(patterns: Iterable[str]) -> tuple[Path, ...]:
    """Files, directories and globs (`**` for any depth) -> files, sorted, each once.

    A directory gives the files below it that end like records, Parquet or `.txt`.

    Raises:
      UserError: something does not exist, or nothing is found.
    """
    found: set[Path] = set()
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = [file for file in path.rglob("*") if _ending(file) in _IN_DIRECTORIES]
        elif glob.has_magic(pattern):
            files = [Path(name) for name in glob.glob(str(path), recursive=True)]
        else:
            raise UserError(f"no file or directory {pattern}")
        files = [Path(os.path.realpath(file)) for file in files if file.is_file()]
        if not files:
            what = f"no {', '.join(_IN_DIRECTORIES)} files in" if path.is_dir() else "no file is"
            raise UserError(f"{what} {pattern}")
        found.update(files)
    if not found:
        raise UserError("no data; pass files, directories or globs with --data")
    return tuple(sorted(found))


def cut(stream: TextIO) -> Iterator[str]:
    """A text in pieces of at most `LONGEST` characters, cut behind line ends where there are."""
    rest = ""
    while len(text := rest + stream.read(LONGEST - len(rest))) == LONGEST:
        end = text.rfind("\n") + 1 or LONGEST
        yield text[:end]
        rest = text[end:]
    if text:
        yield text


def _pieces(stream: TextIO, chat: bool = False) -> Iterator[Document]:
    """A text as one document, or in pieces if it is long; nothing if it is empty."""
    first = True
    previous = ""
    for piece in cut(stream):
        if previous:
            yield _document(previous, chat, first, False)
            first = False
        previous = piece
    if previous:
        yield _document(previous, chat, first, True)


def _document(text: str, chat: bool, first: bool, last: bool) -> Document:
    # JSON can hold halves of surrogate pairs, which no tokenizer takes.
    return Document(text.encode(errors="replace"), chat, first, last)


def _ending(path: Path) -> str:
    """What the name ends with, before a compression's ending."""
    path = Path(path.name.lower())
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix


def _kind(value: Any) -> str:
    return {dict: "an object", list: "an array", str: "a string"}.get(type(value), repr(value))


def _json_lines(stream: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    """Line number and value of every line that is not blank."""
    for number, line in enumerate(stream, 1):
        if line.isspace():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: broken JSON: {error}") from None
        yield number, value


def _json_values(stream: TextIO, path: Path) -> Iterator[tuple[int, Any]]:
    """Line number and value of an array's elements, or of values one after the other."""
    decode = json.JSONDecoder().raw_decode
    text = stream.read(_CHUNK).lstrip()
    array = text.startswith("[")
    at, line = int(array), 1
    while True:
        blank = cast(re.Match, _BETWEEN.match(text, at)).end()
        line += text.count("\n", at, blank)
        at = blank
        if at == len(text):
            text, at = stream.read(_CHUNK), 0
            if text:
                continue
            if array:
                raise UserError(f"{path}:{line}: broken JSON: the array does not end")
            return
        if array and text[at] == "]":
            return
        try:
            value, end = decode(text, at)
        except RecursionError as error:
            raise UserError(f"{path}:{line}: broken JSON: {error}") from None
        except json.JSONDecodeError as error:
            # An error at the end of what was read may only mean that the value goes on.
            unfinished = error.msg.startswith("Unterminated") or error.pos > len(text) - 16
            if unfinished and (more := stream.read(max(_CHUNK, len(text) - at))):
                text, at = text[at:] + more, 0
                continue
            line += text.count("\n", at, error.pos)
            raise UserError(f"{path}:{line}: broken JSON: {error.msg}") from None
        yield line, value
        line += text.count("\n", at, end)
        at = end
