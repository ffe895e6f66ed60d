"""The tasks that turn documents into merged window counts, and their order.

    units of text --count_unit--> runs --merge_runs--> fewer, larger runs --merge_runs--> parts

The parts hold ascending ranges of windows. A task whose output file exists is not run again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers
from rich.progress import Progress

from dart_jax.data.records import PARQUET, Skipped, ending, refuse
from dart_jax.errors import UserError
from dart_jax.ngram import WindowLayout, runs
from dart_jax.ngram.runs import MAX_WORD, Stats
from train.counting import text_tokenizer
from train.counting.executors import Executor
from train.data.documents import START, Corpus, Position, Unit

MB = 10**6
DRIVER = 384 * MB  # the process that reads, distributes and builds, besides reading Parquet
WORKER = 256 * MB  # a worker, besides its units and its database
FEW, ENOUGH = 64 * MB, 192 * MB  # for these: with next to no data, and with any amount

SMALLEST, LARGEST = MB, 64 * MB  # units of text
FAN_IN = 256  # runs read at a time
PART = 2**21  # maximum rows that the driver processes at a time


class Least(NamedTuple):
    """The least memory for a corpus, in bytes.

    Attributes:
      driver: of the process that reads, distributes and builds.
      worker: of each worker.
    """

    driver: int
    worker: int

    @classmethod
    def of(cls, corpus: Corpus) -> Least:
        """Returns it for a corpus; little is enough for little data."""
        parquet = any(ending(path) == ".parquet" for path in corpus.files)
        free = min(ENOUGH, FEW + 8 * corpus.size)
        return cls(DRIVER + PARQUET * parquet, WORKER + free)

    def total(self, workers: int) -> int:
        """Returns it for all processes."""
        return self.driver + workers * self.worker


class Budget(NamedTuple):
    """How memory is divided.

    Attributes:
      least: the least memory.
      workers: number of workers.
      free: bytes per worker for its units and its database.
      reading: bytes that the driver has on top of its minimum.
    """

    least: Least
    workers: int
    free: int
    reading: int

    @classmethod
    def of(cls, memory: int, workers: int, least: Least) -> Budget:
        """Divides `memory` bytes between the driver and the workers.

        Raises:
          UserError: the memory is too little.
        """
        if memory < least.total(workers):
            need = "1 worker needs" if workers == 1 else f"{workers} workers need"
            one = "" if workers == 1 else f", one needs {-(-least.total(1) // MB)}MB"
            raise UserError(
                f"--memory {memory // MB}MB is too little: {need} "
                f"{-(-least.total(workers) // MB)}MB{one}"
            )
        reading = (memory - least.total(workers)) // 4
        free = (memory - least.driver - reading) // workers - WORKER
        return cls(least, workers, free, reading)

    @property
    def sort(self) -> int:
        """Bytes for grouping and sorting in one worker."""
        return self.free // 2

    def unit(self, size: int) -> int:
        """Returns the bytes of text per unit for a corpus of `size` bytes.

        Up to five copies of a unit may be in flight per worker. There are at least eight units per
        worker, so that none is idle for long at the end.
        """
        even = max(SMALLEST, size // (8 * self.workers))
        return min(self.free // 40, LARGEST, even)

    def check(self, unit: int) -> None:
        """Checks that units, sized for an earlier memory limit, fit.

        Raises:
          UserError: the memory is too little for them.
        """
        if self.free < 10 * unit:
            missing = 10 * unit + WORKER - self.least.worker
            # A quarter of what is above the least is for reading.
            needed = self.least.total(self.workers) + self.workers * -(-missing * 4 // 3)
            raise UserError(
                f"the work directory was started with more memory; {self.workers} worker(s) need "
                f"--memory {-(-needed // MB)}MB to resume; use fewer --workers, or delete it"
            )


class Counted(NamedTuple):
    """Totals over all runs.

    Attributes:
      units: number of runs.
      documents: number of documents; each piece of a long one counts.
      tokens: number of tokens, including ends of documents.
      new: tokens counted by this process, not by an earlier one.
      skipped: number of bad records that an earlier process skipped.
    """

    units: int
    documents: int
    tokens: int
    new: int
    skipped: int


@dataclasses.dataclass(frozen=True)
class Counting:
    """Runs the tasks.

    Attributes:
      work: directory of all files.
      layout: layout of the windows.
      memory: bytes for grouping and sorting in one worker.
      executor: runs the tasks.
      progress: shows the progress.
      fan_in: runs merged at a time.
    """

    work: Path
    layout: WindowLayout
    memory: int
    executor: Executor
    progress: Progress
    fan_in: int = FAN_IN

    def count(self, corpus: Corpus, eos: int | None, unit: int, limit: int | None) -> Counted:
        """Counts all units of `unit` bytes and writes their runs.

        Raises:
          UserError: there is no text, or bad data.
        """
        done = runs.read_stats(self.work)
        # Reading starts at the first missing run; a few runs after it may be finished too.
        first = next(n for n in itertools.count() if n not in done)
        start = end(done[first - 1]) if first else START
        if limit is not None:
            limit -= sum(done[n].documents for n in range(first))
        bar = self.progress.add_task("count", total=corpus.size, completed=start.read, note="")
        units = corpus.units(unit, start=start, first=first, limit=limit)
        tasks = (
            (unit, checksum, self.layout, eos, self.work, self.memory)
            for unit, checksum in _checked(units, _checksum(done[first - 1]) if first else 0)
            if unit.number not in done
        )
        stats = list(done.values())
        before = tokens = sum(each.tokens for each in stats)
        began = time.perf_counter()
        for made in self.executor.map(count_unit, tasks):
            stats.append(made)
            tokens += made.tokens
            rate = (tokens - before) / (time.perf_counter() - began)
            note = f"{tokens:,} tokens, {rate:,.0f} tokens/s"
            self.progress.update(bar, completed=end(made).read, note=note)
        if not tokens:
            raise UserError("the data hold no text")
        self.progress.update(bar, completed=corpus.size)
        documents = sum(each.documents for each in stats)
        return Counted(len(stats), documents, tokens, tokens - before, start.skipped)

    def merge(self, units: int) -> Iterator[Path]:
        """Merges the runs of `units` units; yields the parts in turn."""
        level = [runs.run_path(self.work, number) for number in range(units)]
        for depth in itertools.count(1):
            if len(level) <= self.fan_in:
                break
            groups = [level[i : i + self.fan_in] for i in range(0, len(level), self.fan_in)]
            level = [self.work / f"merged-{depth}-{n:06d}.parquet" for n in range(len(groups))]
            whole = ((0, MAX_WORD),) * len(groups)
            for _ in self._merged(f"merge {depth}", groups, whole, level):
                pass
        rows = min(runs.rows_in(self.memory, self.layout), PART)
        ranges = runs.split(level, rows)
        # Named by their range, since another memory limit results in other ranges.
        parts = [self.work / f"part-{low:016x}-{high:016x}.parquet" for low, high in ranges]
        yield from self._merged("build", [level] * len(parts), ranges, parts)

    def _merged(
        self,
        name: str,
        inputs: Sequence[Sequence[Path]],
        ranges: Sequence[tuple[int, int]],
        outputs: Sequence[Path],
    ) -> Iterator[Path]:
        """Produces the missing outputs; yields all of them in order."""
        missing = [not path.is_file() for path in outputs]
        tasks = [
            (paths, self.layout, *bounds, path, self.memory)
            for paths, bounds, path in zip(inputs, ranges, outputs, strict=True)
        ]
        made = self.executor.map(runs.merge_runs, itertools.compress(tasks, missing))
        bar = self.progress.add_task(name, total=len(outputs), note="")
        for path, wanted in zip(outputs, missing, strict=True):
            yield next(made) if wanted else path
            self.progress.advance(bar)


def count_unit(
    unit: Unit, checksum: int, layout: WindowLayout, eos: int | None, directory: Path, memory: int
) -> Stats:
    """Task: encodes a unit and writes its run.

    Args:
      unit: the documents.
      checksum: of all documents of the corpus to the unit's end.
      layout: layout of the windows.
      eos: token that ends every document, unless None.
      directory: holds `tokenizer.json`; receives the run.
      memory: bytes for grouping and sorting.
    """
    backend = _load(directory / "tokenizer.json")
    batches = text_tokenizer.batches(unit.documents)
    encoded = (text_tokenizer.encode(backend, batch, eos) for batch in batches)
    note = " ".join(map(str, (*unit.end, checksum)))
    path = runs.run_path(directory, unit.number)
    return runs.write_run(encoded, layout, path, memory, note)


def end(stats: Stats) -> Position:
    """Returns the end of the unit that a run was counted from."""
    return Position(*map(int, stats.note.split()[:-1]))


def counted_from(corpus: Corpus, stats: Stats) -> bool:
    """Reads the corpus up to the end of a run's unit; returns whether it is as it was then."""
    place, checksum = end(stats), 0
    if corpus.bad is not refuse:  # what is skipped here was counted then
        corpus = dataclasses.replace(corpus, bad=Skipped())
    for document, after in corpus.documents():
        checksum = zlib.crc32(document.text, checksum)
        if (after.file, after.document) == (place.file, place.document):
            return checksum == _checksum(stats)
    return False


def _checksum(stats: Stats) -> int:
    """The checksum of all documents to the end of the unit that a run was counted from."""
    return int(stats.note.split()[-1])


def _checked(units: Iterator[Unit], checksum: int) -> Iterator[tuple[Unit, int]]:
    """Yields units, each with the checksum of all documents to its end."""
    for unit in units:
        for document in unit.documents:
            checksum = zlib.crc32(document.text, checksum)
        yield unit, checksum


@functools.lru_cache(maxsize=1)
def _load(path: Path) -> tokenizers.Tokenizer:
    text_tokenizer.single_threaded()
    return tokenizers.Tokenizer.from_file(str(path))
