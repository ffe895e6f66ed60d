"""Records of data files: JSON values, rows of Parquet, and plain text.

The suffix, after removing that of a compression (.gz, .bz2, .xz, .zst), decides what a file holds:

    .jsonl .ndjson   one JSON record per line
    .json            an array of records, or a sequence of records
    .parquet         one record per row
    anything else    plain text
"""

from __future__ import annotations

import contextlib
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
from typing import Any, BinaryIO, NamedTuple, NoReturn, TextIO, cast

import duckdb

from dart_jax.data.compression import COMPRESSIONS, decompressed
from dart_jax.errors import UserError
from dart_jax.weights import hub

PARQUET = 256 * 10**6  # least memory for reading Parquet, in bytes
HUB = "hub:"

_JSON_LINES = (".jsonl", ".ndjson")
_STRUCTURED = (*_JSON_LINES, ".json", ".parquet")
_IN_DIRECTORIES = (*_STRUCTURED, ".txt")
_CHUNK = 2**16  # characters read at a time
_BETWEEN = re.compile(r"[\s,]*")


class Record(NamedTuple):
    """One JSON value, or a row as a dict.

    Attributes:
      where: file and line, or row, for errors.
      value: a value of any JSON type.
      read: bytes of the file read so far, before decompression.
    """

    where: str
    value: Any
    read: int


# Which of a Parquet file's columns to read.
Columns = Callable[[list[str]], list[str]]


def refuse(error: UserError) -> NoReturn:
    """Raises the error of a bad record; the default handler."""
    raise error


@dataclasses.dataclass
class Skipped:
    """Counts bad records and keeps the first error."""

    count: int = 0
    first: str = ""

    def __call__(self, error: UserError) -> None:
        self.count += 1
        self.first = self.first or str(error)


def is_text(path: Path) -> bool:
    """Whether a file holds plain text rather than records."""
    return ending(path) not in _STRUCTURED


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[tuple[TextIO, BinaryIO]]:
    """Opens a file as decompressed text; yields that text and the raw file.

    Raises:
      UserError: it cannot be read, now or inside the block.
    """
    with _one_line(path), _opened(path) as (raw, _, text):
        yield text, raw


def records(
    path: Path,
    *,
    columns: Columns = list,
    memory: int = PARQUET,
    bad: Callable[[UserError], None] = refuse,
) -> Iterator[Record]:
    """Yields the records of a file that is not plain text.

    Args:
      path: the file.
      columns: names of a Parquet file's columns -> those to read.
      memory: bytes that reading Parquet may use.
      bad: called for each line that is not JSON; the line is then skipped.

    Raises:
      UserError: the file cannot be read; the message says where.
    """
    with _one_line(path):
        if ending(path) == ".parquet":
            yield from _rows(path, columns, memory)
            return
        with _opened(path) as (raw, stream, text):
            lines = ending(path) in _JSON_LINES
            values = _json_lines(stream, path, bad) if lines else _json_values(text, path)
            for line, value in values:
                yield Record(f"{path}:{line}", value, raw.tell())


def find_files(patterns: Iterable[str]) -> tuple[Path, ...]:
    """Expands files, directories, globs (`**` for any depth) and hub data sets to sorted files.

    Each file is returned once. A directory stands for the files below it with a suffix of records
    or `.txt`. `hub:owner/name` is such a directory on the Hugging Face hub, `hub:owner/name/path` a
    file, a directory or a glob in it.

    Raises:
      UserError: something does not exist, or nothing is found.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if pattern.startswith(HUB):
            inside = hub.resolve_data(pattern.removeprefix(HUB))
            files = [file for file in inside if file.is_file() and _is_data(file)]
        elif path.is_file():
            files = [path]
        elif path.is_dir():
            files = [file for file in path.rglob("*") if _is_data(file)]
        elif glob.has_magic(pattern):
            files = [Path(name) for name in glob.glob(str(path), recursive=True)]
        else:
            raise UserError(f"no file or directory {pattern}")
        files = [file for file in files if file.is_file()]
        if not files:
            bare = path.is_dir() or pattern.startswith(HUB)
            what = f"no {', '.join(_IN_DIRECTORIES)} files in" if bare else "no file is"
            raise UserError(f"{what} {pattern}")
        for file in files:
            real = Path(os.path.realpath(file))
            # The hub's cache links to files whose own names have no suffix.
            alike = ending(real) == ending(file)
            found[str(real)] = real if alike else Path(os.path.abspath(file))
    if not found:
        raise UserError("no data; pass files, directories or globs with --data")
    return tuple(sorted(found.values()))


def without(files: Iterable[Path], ours: Iterable[Path]) -> tuple[Path, ...]:
    """Removes a program's own outputs, files or directories, which may lie among its data.

    Raises:
      UserError: nothing is left.
    """
    places = [path.resolve() for path in ours]
    left = tuple(
        file for file in files if not any(file.resolve().is_relative_to(place) for place in places)
    )
    if not left:
        raise UserError(f"all data lie in {places[0]}, where the program writes; pass others")
    return left


def fingerprint(files: Iterable[Path]) -> str:
    """Returns a digest of the files' names, sizes and modification times."""
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(json.dumps([str(path), stat.st_size, stat.st_mtime_ns]).encode())
    return digest.hexdigest()


def ending(path: Path) -> str:
    """Returns the suffix of a name, in lower case, without that of a compression."""
    path = Path(path.name.lower())
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix


def kind(value: Any) -> str:
    """Describes the type of a JSON value in words."""
    return {dict: "an object", list: "an array", str: "a string"}.get(type(value), repr(value))


def _is_data(path: Path) -> bool:
    return ending(path) in _IN_DIRECTORIES


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO, TextIO]]:
    """Opens a file: raw, decompressed, and as text."""
    with (
        path.open("rb") as raw,
        decompressed(raw, path) as stream,
        io.TextIOWrapper(stream, "utf-8-sig", newline="") as text,
    ):
        yield raw, stream, text


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Reports any error while reading as a UserError of one line."""
    try:
        yield
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


def _rows(path: Path, columns: Columns, memory: int) -> Iterator[Record]:
    size = path.stat().st_size
    with duckdb.connect(config={"threads": 1, "memory_limit": f"{memory}B"}) as database:
        # As a query parameter, so that no character of the name is interpreted.
        source = [glob.escape(str(path))]
        described = database.execute("describe select * from read_parquet($1)", [source])
        names = columns([name for name, *_ in described.fetchall()])
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        counted = database.execute("select count(*) from read_parquet($1)", [source])
        rows = cast(tuple, counted.fetchone())[0]
        database.execute(f"select {quoted} from read_parquet($1)", [source])
        row = 0
        while batch := database.fetchmany(64):
            for values in batch:
                row += 1
                value = dict(zip(names, values, strict=True))
                yield Record(f"{path}, row {row}", value, size * row // rows)


def _json_lines(
    stream: BinaryIO, path: Path, bad: Callable[[UserError], None]
) -> Iterator[tuple[int, Any]]:
    """Yields the line number and value of every line that is not blank."""
    for number, line in enumerate(stream, 1):
        if line.isspace():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad(UserError(f"{path}:{number}: broken JSON: {error}"))
        else:
            yield number, value


def _json_values(stream: TextIO, path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the line number and value of each element of an array, or of a sequence of values."""
    decode = json.JSONDecoder().raw_decode
    begin = stream.read(_CHUNK)
    text = begin.lstrip()
    array = text.startswith("[")
    at, line = int(array), 1 + begin.count("\n", 0, len(begin) - len(text))
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
            # An error at the end of the buffer may only mean that the value continues.
            unfinished = error.msg.startswith("Unterminated") or error.pos > len(text) - 16
            if unfinished and (more := stream.read(max(_CHUNK, len(text) - at))):
                text, at = text[at:] + more, 0
                continue
            line += text.count("\n", at, error.pos)
            raise UserError(f"{path}:{line}: broken JSON: {error.msg}") from None
        yield line, value
        line += text.count("\n", at, end)
        at = end
