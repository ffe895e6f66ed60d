"""Counts windows that do not fit into memory: sorted runs, merged by ranges of windows.

A run is a Parquet file: unsigned columns `w0`, `w1`, .. (the words of a window) and `n` (count), in
ascending order of windows, each window once. DuckDB groups, sorts and spills. All functions here
that write a file depend only on their arguments, so that any process can run them, and write it
atomically.
"""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from dart_jax.ngram.windows import WindowLayout

MAX_WORD = 2**64 - 1
SLICE = 64  # bytes of memory per token of a slice
ROW_GROUP = 2**14  # rows; the smallest and largest windows of row groups show their distribution


class Stats(NamedTuple):
    """Statistics of a run's input.

    Attributes:
      documents: number of documents.
      tokens: number of tokens, ends of documents included.
      note: free for the writer of the run.
    """

    documents: int
    tokens: int
    note: str = ""


def run_path(directory: Path, number: int) -> Path:
    """Returns the path of a unit's run."""
    return directory / f"run-{number:06d}.parquet"


def write_run(
    batches: Iterable[tuple[NDArray[np.integer], NDArray[np.integer]]],
    layout: WindowLayout,
    path: Path,
    memory: int,
    note: str = "",
) -> Stats:
    """Counts the windows of encoded documents.

    Args:
      batches: tokens [n] and offsets [documents + 1], as in `WindowLayout.windows`.
      layout: how the windows are encoded.
      path: the run to write.
      memory: bytes for grouping and sorting.
      note: stored with the run; numbers and spaces only.
    """
    stats = Stats(0, 0, note)
    slices: list[Path] = []
    with _database(path.parent, memory) as (database, scratch):
        for ids, offsets in _slices(batches, memory // SLICE):
            stats = Stats(stats.documents + len(offsets) - 1, stats.tokens + len(ids), note)
            slices.append(scratch / f"slice-{len(slices)}.parquet")
            words, counts = layout.distinct(layout.windows(ids, offsets))
            columns = dict(zip(_words(layout), words.T, strict=True)) | {"n": counts}
            database.register("windows", columns)
            _write(database, "select * from windows", slices[-1], stats)
        whole = slices[0]
        if len(slices) > 1:
            whole = scratch / "whole.parquet"
            _write(database, _sum(slices, layout), whole, stats)
        _keep(whole, path)
    return stats


def merge_runs(
    runs: Sequence[Path], layout: WindowLayout, low: int, high: int, path: Path, memory: int
) -> Path:
    """Adds up the windows of runs whose first word w0 has `low <= w0 <= high`."""
    with _database(path.parent, memory) as (database, scratch):
        # Merge in pieces that fit in memory: spilling would need more memory in DuckDB.
        pieces = []
        for begin, end in split(runs, rows_in(memory, layout), low, high):
            pieces.append(scratch / f"piece-{len(pieces)}.parquet")
            where = f"where w0 between {begin} and {end}"
            _write(database, _sum(runs, layout, where), pieces[-1])
        whole = pieces[0]
        if len(pieces) > 1:
            whole = scratch / "whole.parquet"
            _write(database, f"select * from read_parquet({_list(pieces)})", whole)
        _keep(whole, path)
    return path


def rows_in(memory: int, layout: WindowLayout) -> int:
    """Returns how many rows of runs can be added up in `memory` bytes."""
    return max(1, memory // (64 * (layout.words + 1)))


def read_run(path: Path, layout: WindowLayout) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Reads the windows uint64 [n, W] and counts int64 [n] of a run."""
    with duckdb.connect(config=_CONFIG) as database:
        columns = database.execute(f"select * from read_parquet({_list([path])})").fetchnumpy()
    words = [np.asarray(columns[name], np.uint64) for name in _words(layout)]
    return np.stack(words, axis=1), np.asarray(columns["n"], np.int64)


def read_stats(directory: Path) -> dict[int, Stats]:
    """Reads the statistics stored in the runs of a directory, by unit number."""
    runs = sorted(directory.glob("run-*.parquet"))
    if not runs:
        return {}
    with duckdb.connect(config=_CONFIG) as database:
        stored = database.execute(
            f"select file_name, value from parquet_kv_metadata({_list(runs)}) where key = 'unit'"
        ).fetchall()
    stats = {}
    for name, value in stored:
        documents, tokens, note = value.decode().split(" ", maxsplit=2)
        number = int(Path(name).stem.removeprefix("run-"))
        stats[number] = Stats(int(documents), int(tokens), note)
    return stats


def split(
    runs: Sequence[Path], rows: int, low: int = 0, high: int = MAX_WORD
) -> list[tuple[int, int]]:
    """Splits `low` to `high` into ranges of first words with about `rows` rows of the runs each.

    Returns:
      (low, high) of each range, both inclusive, in ascending order.
    """
    with duckdb.connect(config=_CONFIG) as database:
        groups = database.execute(
            "select stats_min_value::ubigint low, stats_max_value::ubigint high, "
            f"row_group_num_rows n from parquet_metadata({_list(runs)}) "
            f"where path_in_schema = 'w0' and high >= {low} and low <= {high}"
        ).fetchnumpy()
    if len(groups["n"]) == 0:
        return [(low, high)]
    # Approximate each row group by half of its rows at either end.
    words = np.concatenate([groups["low"], groups["high"]]).astype(np.uint64)
    order = np.argsort(words)
    before = np.cumsum(np.tile(groups["n"], 2)[order]) / 2
    ranges = max(1, round(before[-1] / rows))
    bounds = np.searchsorted(before, before[-1] * np.arange(1, ranges) / ranges)
    # Python integers, because DuckDB queries are formatted in decimal.
    inner = [int(word) for word in np.unique(words[order][bounds]) if low < word <= high]
    return list(zip([low, *inner], [*(word - 1 for word in inner), high], strict=True))


# Extensions are never downloaded; the cores are used by parallel processes.
_CONFIG = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


@contextlib.contextmanager
def _database(directory: Path, memory: int) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """Opens a database with `memory` bytes that spills the rest; yields it and its directory."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="tmp-") as scratch:
        limits = {"memory_limit": f"{memory}B", "temp_directory": scratch}
        with duckdb.connect(config=_CONFIG | limits) as database:
            yield database, Path(scratch)


def _sum(runs: Sequence[Path], layout: WindowLayout, where: str = "") -> str:
    """Returns a query that adds up the windows of runs."""
    return (
        f"select {', '.join(_words(layout))}, sum(n)::bigint n from read_parquet({_list(runs)}) "
        f"{where} group by all order by all"
    )


def _write(
    database: duckdb.DuckDBPyConnection, query: str, path: Path, stats: Stats | None = None
) -> None:
    """Writes the query's rows to a file, with the statistics as metadata."""
    options = f"format parquet, parquet_version v2, row_group_size {ROW_GROUP}"
    if stats is not None:
        note = f"{stats.documents} {stats.tokens} {stats.note}"
        options += f", kv_metadata {{unit: '{note}'}}"
    database.execute(f"copy ({query}) to {_quoted(str(path))} ({options})")


def _keep(whole: Path, path: Path) -> None:
    """Moves a finished file to its path, durably."""
    with whole.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(whole, path)


def _slices(
    batches: Iterable[tuple[NDArray[np.integer], NDArray[np.integer]]], size: int
) -> Iterator[tuple[NDArray[np.integer], NDArray[np.integer]]]:
    """Regroups documents into batches of about `size` tokens, without splitting a document."""
    tokens: list[NDArray] = []
    lengths: list[NDArray] = []
    held = 0
    for ids, offsets in batches:
        tokens.append(ids)
        lengths.append(np.diff(offsets))
        held += len(ids)
        if held >= size:
            yield _join(tokens, lengths)
            tokens, lengths, held = [], [], 0
    if tokens:
        yield _join(tokens, lengths)


def _join(tokens: list[NDArray], lengths: list[NDArray]) -> tuple[NDArray, NDArray]:
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return np.concatenate(tokens), offsets


def _words(layout: WindowLayout) -> list[str]:
    return [f"w{i}" for i in range(layout.words)]


def _list(paths: Iterable[Path]) -> str:
    """Formats a list of files for DuckDB, with all special characters of their names escaped."""
    return "[" + ", ".join(_quoted(glob.escape(str(path))) for path in paths) + "]"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
