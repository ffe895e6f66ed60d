"""Converts n-gram tries of the reference implementation to n-gram files.

A trie of 1.3 billion nodes is far larger than memory, and its nodes are in any order. A database on
disk therefore finds the paths of the inner nodes, level by level from the root, and then sorts all
windows. Only files grow with the size of the trie.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from dart_jax import _core
from dart_jax.errors import UserError, require
from dart_jax.machine import available_cores
from dart_jax.ngram.builder import NgramBuilder, check_lossy
from dart_jax.ngram.windows import WindowLayout
from dart_jax.progress import progress_bars

if TYPE_CHECKING:
    import duckdb

_HEADER_BYTES = 16
_READ_BYTES = 1 << 24
_SLICE_ROWS = 1 << 20

# Memory in bytes: of this process without the database, and the minimum per database thread.
_OWN = 200 * 10**6
_THREAD = 50 * 10**6


def convert_reference(
    source: Path,
    out: Path,
    *,
    vocab_size: int,
    fingerprint: bytes = bytes(32),
    min_counts: Sequence[int] | None = None,
    precision: int | None = None,
    memory: int = 4 * 10**9,
) -> None:
    """Converts a trie (`small.trie`, `full.trie`) to an n-gram file.

    Args:
      source: the trie.
      out: the file to write, atomically, in a directory that exists; needs temporary files there of
        up to one and a half times the size of the trie.
      vocab_size: number of tokens of the tokenizer that the trie was counted with.
      fingerprint: 32 bytes, `tokenizer_fingerprint` of that tokenizer; zeros if unknown.
      min_counts: see `NgramBuilder.write`.
      precision: see `NgramBuilder.write`.
      memory: bytes that the process may use, at least 250 MB.

    Raises:
      UserError: the trie is missing, damaged or of an order other than 2 to 5, its tokens are
        outside the vocabulary, or there is too little memory or disk space.
    """
    require("duckdb", "train", "the conversion of a trie")
    import duckdb

    if memory < _OWN + _THREAD:
        raise UserError(
            f"{memory // 10**6} MB of memory are too little to convert a trie: "
            f"give at least {(_OWN + _THREAD) // 10**6} MB"
        )
    with (
        progress_bars() as bar,
        tempfile.TemporaryDirectory(dir=out.parent, prefix=".dart-ngram-") as directory,
    ):
        config = {
            "memory_limit": f"{(memory - _OWN) // 1000}KB",
            "threads": min(available_cores(), (memory - _OWN) // _THREAD),
            "temp_directory": f"{directory}/spilled",
            "autoinstall_known_extensions": False,
        }
        try:
            with open(source, "rb", buffering=0) as file:
                header = np.frombuffer(file.read(_HEADER_BYTES), np.uint8)
                size = os.fstat(file.fileno()).st_size
                parser = _core.ReferenceTrieParser(header, size, vocab_size)
                check_lossy(parser.order, min_counts or (), precision)
                layout = WindowLayout(parser.order, vocab_size)
                builder = NgramBuilder(layout, directory)
                with duckdb.connect(f"{directory}/nodes.duckdb", config=config) as database:
                    trie = _Trie(database, layout, bar)
                    trie.load(file, parser)
                    trie.find_paths()
                    trie.sort_windows()
                    for words, counts in trie.windows():
                        builder.add(words, counts)
        except (duckdb.Error, OSError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            if reason == "Query interrupted":  # the database's error for Ctrl-C
                raise KeyboardInterrupt from error
            raise UserError(
                f"cannot convert {source} with {memory // 10**6} MB of memory and temporary files "
                f"in {out.parent}: {reason}; free some space, or run `dart-jax ngram "
                "convert` with more --memory or its output on another disk"
            ) from error
        except ValueError as error:
            raise UserError(f"{source} {error}") from error
        with _stage(bar, "writing"):
            builder.write(out, fingerprint=fingerprint, min_counts=min_counts, precision=precision)


class _Trie:
    """A trie's nodes in a database, which converts them to sorted windows.

    Tables, in the order of their creation:
      leaves: parent, token and count of each node without children.
      inner_nodes: id, parent, token and count of the other nodes, except for the root.
      paths: id, depth, words w0, w1, .. and rest of each inner node and the root. The words encode
        its tokens as in `WindowLayout`; the rest is how often the corpus ended after it: its count
        minus its children's.
      windows: words and count, sorted.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, layout: WindowLayout, bar: Progress):
        self.database, self.layout, self.bar = database, layout, bar
        self.words = [f"w{w}" for w in range(layout.words)]
        # [i, w]: what the code 1 (token + 1) at index i of a window adds to its word w.
        units = layout.pack(np.where(np.eye(layout.order, dtype=bool), 0, -1)).tolist()
        self.extended = ", ".join(
            f"paths.w{w} + (token + 1)::ubigint * (case depth "
            + " ".join(f"when {i} then {unit[w]}::ubigint" for i, unit in enumerate(units))
            + f" end) as w{w}"
            for w in range(layout.words)
        )

    def load(self, file: io.FileIO, parser: _core.ReferenceTrieParser) -> None:
        """Loads all nodes into the tables leaves and inner_nodes."""
        sql = self.database.execute
        tables = ("leaves", "inner_nodes")
        sql("create table leaves(parent ubigint, token integer, count integer)")
        sql("create table inner_nodes(id ubigint, parent ubigint, token integer, count integer)")
        sql("set preserve_insertion_order = false")  # several threads may write
        sql("begin")
        buffer = bytearray(_READ_BYTES)
        chunk = np.frombuffer(buffer, np.uint8)
        total = os.fstat(file.fileno()).st_size
        task = self.bar.add_task("reading", total=total, completed=_HEADER_BYTES)
        while size := file.readinto(buffer):
            for table, nodes in zip(tables, parser.feed(chunk[:size]), strict=True):
                if len(nodes["token"]):
                    sql(f"insert into {table} from nodes")  # the variable of that name
            self.bar.advance(task, size)
        parser.finish()
        sql("commit")
        sql("set preserve_insertion_order = true")

    def find_paths(self) -> None:
        """Fills the table paths from the root downwards, since ids do not imply the depth."""
        sql = self.database.execute
        with _stage(self.bar, "adding up"):
            sql("""
                create table rests as
                select id, parent, token, count - total as rest
                from inner_nodes join (
                    select parent as id, sum(count)::bigint as total
                    from (select parent, count from leaves
                          union all select parent, count from inner_nodes)
                    group by parent
                ) using (id)
            """)
            sql("drop table inner_nodes")

        with _stage(self.bar, "finding paths"):
            columns = ", ".join(f"{word} ubigint" for word in self.words)
            sql(f"create table paths(id ubigint, depth utinyint, {columns}, rest bigint)")
            sql(f"insert into paths values (0, 0, {', '.join('0' for _ in self.words)}, 0)")
            for depth in range(self.layout.order - 1):
                sql(f"""
                    insert into paths select rests.id, {depth + 1}, {self.extended}, rests.rest
                    from rests join paths on rests.parent = paths.id where depth = {depth}
                """)
        lost = self._number("select count(*) from rests") + 1
        lost -= self._number("select count(*) from paths")
        if lost:
            raise ValueError(
                f"is damaged: its root does not reach {lost} of the nodes with children in "
                f"{self.layout.order - 1} steps"
            )
        sql("drop table rests")
        if wrong := self._number("select count(*) from paths where rest < 0"):
            raise ValueError(
                f"is damaged: it counts {wrong} n-grams less often than what begins with them"
            )

    def sort_windows(self) -> None:
        """Fills the table windows: all leaves, and all inner nodes after which the corpus ended."""
        with _stage(self.bar, "sorting"):
            words = ", ".join(self.words)
            self.database.execute(f"""
                create table windows as
                select {self.extended}, count::bigint as count
                from leaves join paths on leaves.parent = paths.id
                union all
                select {words}, rest as count from paths where rest > 0
                order by {words}
            """)
            self.database.execute("drop table leaves")
            self.database.execute("drop table paths")

    def windows(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """Yields the sorted windows in slices."""
        rows = self._number("select count(*) from windows")
        task = self.bar.add_task("packing", total=rows)
        for begin in range(0, rows, _SLICE_ROWS):
            columns = self.database.execute(
                "from windows where rowid >= ? and rowid < ?", [begin, begin + _SLICE_ROWS]
            ).fetchnumpy()
            count = np.asarray(columns["count"])
            yield np.stack([columns[word] for word in self.words], axis=1), count
            self.bar.advance(task, len(count))

    def _number(self, query: str) -> int:
        row = self.database.execute(query).fetchone()
        assert row is not None
        return row[0]


@contextlib.contextmanager
def _stage(bar: Progress, name: str) -> Iterator[None]:
    """Shows a stage of the work that has no measurable progress."""
    task = bar.add_task(name, total=None)
    yield
    bar.update(task, total=1, completed=1)
