"""Records of data files: JSON values, rows of Parquet, and plain text.

The suffix, after removing that of a compression (.gz, .bz2, .xz, .zst), decides what a file holds:

    .jsonl .ndjson   one JSON record per line
    .json            an array of records, or one record after the other; read as a whole
    .parquet         one record per row
    anything else    plain text

A line that cannot be read costs itself alone. What is broken in an array, in a table or in a
compressed file costs the rest of the file, as one bad record.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TextIO, cast

from dart_jax.errors import UserError, require
from dart_jax.weights import hub

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    try:
        from backports import zstd
    except ImportError:
        zstd = None

PARQUET = 256 * 10**6  # least memory for reading Parquet, in bytes
HUB = "hub:"
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

_JSON_LINES = (".jsonl", ".ndjson")
_STRUCTURED = (*_JSON_LINES, ".json", ".parquet")
_IN_DIRECTORIES = (*_STRUCTURED, ".txt")
_BETWEEN = re.compile(r"[\s,]*")  # values of an array


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


class DamagedError(UserError):
    """A file holds no text, or is cut off or damaged; what comes before was read."""


def refuse(error: UserError) -> NoReturn:
    """Raises the error of a bad record; the default handler."""
    raise UserError(f"{error}; --skip-bad skips such records")


@dataclasses.dataclass
class Skipped:
    """Counts bad records and keeps the first error."""

    count: int = 0
    first: str = ""

    def __call__(self, error: UserError) -> None:
        self.count += 1
        self.first = self.first or str(error)

    def __str__(self) -> str:
        """Returns the end of a summary, empty if no record is bad."""
        first = f", the first: {self.first}" if self.first else ""
        return f", skipped {self.count:,} bad records{first}" if self.count else ""


def is_text(path: Path) -> bool:
    """Returns whether a file holds plain text rather than records."""
    return ending(path) not in _STRUCTURED


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[tuple[TextIO, BinaryIO]]:
    """Opens a file as decompressed text; yields that text and the raw file.

    Raises:
      UserError: it cannot be read, now or inside the block; a `DamagedError` if its content is bad.
    """
    with _one_line(path), path.open("rb") as raw, _decompressed(raw, path) as stream:
        yield io.TextIOWrapper(stream, "utf-8-sig", newline=""), raw


def records(
    path: Path, *, memory: int = PARQUET, bad: Callable[[UserError], None] = refuse
) -> Iterator[Record]:
    """Yields the records of a file that is not plain text.

    Args:
      path: the file.
      memory: bytes that reading Parquet may use.
      bad: called with the error of each record that cannot be read; reading then goes on.

    Raises:
      UserError: the file cannot be read; the message says where.
    """
    with _one_line(path):
        if ending(path) == ".parquet":
            yield from _rows(path, memory, bad)
            return
        with path.open("rb") as raw, _decompressed(raw, path) as stream:
            try:
                values = _lines if ending(path) in _JSON_LINES else _elements
                for line, value in values(stream, path, bad):
                    yield Record(f"{path}:{line}", value, raw.tell())
            except _DAMAGES as error:
                if getattr(error, "errno", None) is not None:
                    raise  # the disk's
                bad(_damaged(path, error))


def find_files(patterns: Iterable[str]) -> tuple[Path, ...]:
    """Expands files, directories, globs (`**` for any depth) and hub data sets to sorted files.

    Each file is returned once. A directory stands for the files below it with a suffix of records
    or `.txt`, except in `*.work`, where unfinished runs keep theirs. `hub:owner/name` is such a
    directory on the Hugging Face hub, `hub:owner/name/path` a file, a directory or a glob in it.

    Raises:
      UserError: something does not exist, or nothing is found.
    """
    files_by_path: dict[str, Path] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if pattern.startswith(HUB):
            inside = hub.resolve_data(pattern.removeprefix(HUB))
            files = [file for file in inside if file.is_file() and _is_data(file)]
        elif path.is_file():
            files = [path]
        elif path.is_dir():
            data = (file for file in path.rglob("*") if _is_data(file))
            files = [file for file in data if not _in_work(file, path)]
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
            files_by_path[str(real)] = real if alike else Path(os.path.abspath(file))
    if not files_by_path:
        raise UserError("no data; pass files, directories or globs with --data")
    return tuple(sorted(files_by_path.values()))


def without(files: Iterable[Path], ours: Iterable[Path]) -> tuple[Path, ...]:
    """Removes a program's own outputs, files or directories, which may lie among its data; raises
    UserError if nothing is left."""
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


def _in_work(file: Path, directory: Path) -> bool:
    return any(parent.suffix == ".work" for parent in file.relative_to(directory).parents)


def _is_data(path: Path) -> bool:
    return ending(path) in _IN_DIRECTORIES


def _decompressed(raw: BinaryIO, path: Path) -> BinaryIO:
    """Returns the decompressed stream of an open file, according to its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".zst" and zstd is None:
        raise UserError(f"{path} needs backports.zstd: pip install 'dart-jax[train]'")
    modules: dict[str, Any] = {".gz": gzip, ".bz2": bz2, ".xz": lzma, ".zst": zstd}
    return modules[suffix].open(raw) if suffix in modules else raw


_DAMAGES: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, lzma.LZMAError)
if zstd is not None:
    _DAMAGES += (zstd.ZstdError,)


def _damaged(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"cannot read all of {path}: {str(error).partition(chr(10))[0]}")


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Reports any error while reading as a UserError of one line."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DamagedError(
            f"{path} is not UTF-8 text ({error.reason}); convert it or leave it out"
        ) from None
    except _DAMAGES as error:
        if getattr(error, "errno", None) is None:
            raise _damaged(path, error) from None
        reason = str(error).split("\n", 1)[0]
        raise UserError(f"cannot read {path}: {reason}") from None


def _rows(path: Path, memory: int, bad: Callable[[UserError], None]) -> Iterator[Record]:
    require("duckdb", "train", "a Parquet file")
    import duckdb

    size, row = path.stat().st_size, 0
    try:
        with duckdb.connect(config={"threads": 1, "memory_limit": f"{memory}B"}) as database:
            # As a query parameter, so that no character of the name is interpreted.
            source = [glob.escape(str(path))]
            count = database.execute("select count(*) from read_parquet($1)", [source])
            rows = cast(tuple, count.fetchone())[0]
            database.execute("select * from read_parquet($1)", [source])
            names = [name for name, *_ in database.description or ()]
            while batch := database.fetchmany(64):
                for values in batch:
                    row += 1
                    value = dict(zip(names, map(_without_none, values), strict=True))
                    yield Record(f"{path}, row {row}", value, size * row // rows)
    except duckdb.OutOfMemoryException:
        raise UserError(
            f"cannot read {path}: its row groups are too large for the memory; give more "
            "--memory, or write the file again with smaller ones"
        ) from None
    except duckdb.Error as error:
        bad(_damaged(path, error))


def _without_none(value: Any) -> Any:
    """Removes the None with which Parquet fills fields that an object does not have."""
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _lines(
    stream: BinaryIO, path: Path, bad: Callable[[UserError], None]
) -> Iterator[tuple[int, Any]]:
    """Yields the line number and value of every line that is neither blank nor null."""
    for number, line in enumerate(stream, 1):
        if line.isspace():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad(UserError(f"{path}:{number}: broken JSON: {error}"))
            continue
        if value is not None:
            yield number, value


def _elements(
    stream: BinaryIO, path: Path, bad: Callable[[UserError], None]
) -> Iterator[tuple[int, Any]]:
    """Yields the line number and value of every element of an array, or of a sequence of values,
    up to one that is broken or cut off."""
    text = stream.read().decode("utf-8-sig").strip()
    array = text.startswith("[")
    decode, place, line = json.JSONDecoder().raw_decode, int(array), 1
    while True:
        blank = _BETWEEN.match(text, place)
        begin = blank.end() if blank else place
        line += text.count("\n", place, begin)
        if text[begin : begin + 2] == "]" * array:
            return
        try:
            value, place = decode(text, begin)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            bad(UserError(f"{path}:{line}: broken JSON: {reason}; nothing behind it is read"))
            return
        if value is not None:
            yield line, value
        line += text.count("\n", begin, place)
