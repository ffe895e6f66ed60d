"""The tasks that turn documents into merged window counts, and their order.

    units of text --count_unit--> runs --merge_runs--> fewer, larger runs --merge_runs--> parts

The parts hold ascending ranges of windows. A task whose output file exists is not run again: a run
records a digest of its documents, and merged files are named by the runs that they are from.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from rich.progress import Progress

from dart_jax.data.records import PARQUET, ending
from dart_jax.errors import UserError
from dart_jax.ngram import WindowLayout, runs
from dart_jax.ngram.runs import MAX_WORD, Stats
from train.counting import text_tokenizer
from train.counting.executors import Executor
from train.data.documents import Corpus, Unit

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


class Totals(NamedTuple):
    """Totals over all runs.

    Attributes:
      runs: number of runs.
      documents: number of documents; each piece of a long one counts.
      tokens: number of tokens, including ends of documents.
      new: tokens counted by this process, not by an earlier one.
      digest: of the documents of all runs.
    """

    runs: int
    documents: int
    tokens: int
    new: int
    digest: int


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

    def count(self, corpus: Corpus, eos: int | None, unit: int, limit: int | None) -> Totals:
        """Counts the units of `unit` bytes whose runs are missing, and writes these.

        The last run may be of a unit that has grown since: it is counted again.

        Raises:
          UserError: there is no text, or bad data, or other units were counted before.
        """
        earlier, stats = runs.read_stats(self.work), dict[int, Stats]()
        last, digest = max(earlier, default=0), 0
        bar = self.progress.add_task("count", total=corpus.size, note="")
        new, began = 0, time.perf_counter()

        def tasks() -> Iterator[tuple[Any, ...]]:
            nonlocal digest
            for part in corpus.units(unit, limit):
                self.progress.update(bar, completed=part.read)
                note = str(part.digest)
                digest = zlib.crc32(note.encode(), digest)
                if part.number in earlier and earlier[part.number].note == note:
                    stats[part.number] = earlier[part.number]
                elif part.number < last:
                    raise UserError(
                        f"{self.work} holds counts of {len(earlier):,} units, made from another "
                        "--data; pass the same again to go on, more only behind them, or name "
                        "another --work, or delete it"
                    )
                else:
                    yield part, note, self.layout, eos, self.work, self.memory

        for number, counted in self.executor.map(count_unit, tasks()):
            stats[number] = counted
            new += counted.tokens
            rate = new / (time.perf_counter() - began)
            self.progress.update(bar, note=f"{new:,} tokens, {rate:,.0f} tokens/s")
        tokens = sum(each.tokens for each in stats.values())
        if not tokens:
            raise UserError("the data hold no text")
        self.progress.update(bar, completed=corpus.size)
        documents = sum(each.documents for each in stats.values())
        return Totals(len(stats), documents, tokens, new, digest)

    def merge(self, totals: Totals) -> Iterator[Path]:
        """Merges the runs; yields the parts in turn."""
        level = [runs.run_path(self.work, number) for number in range(totals.runs)]
        name = f"{totals.digest:08x}"
        for path in self.work.glob("merged-*"):
            if not path.name.startswith(f"merged-{name}-"):
                path.unlink()
        for depth in itertools.count(1):
            if len(level) <= self.fan_in:
                break
            groups = [level[i : i + self.fan_in] for i in range(0, len(level), self.fan_in)]
            level = [self._merged_path(f"{name}-{depth}-{n:06d}") for n in range(len(groups))]
            whole = ((0, MAX_WORD),) * len(groups)
            for _ in self._merge(f"merge {depth}", groups, whole, level):
                pass
        rows = min(runs.rows_in(self.memory, self.layout), PART)
        ranges = runs.split(level, rows)
        # Named by their range, since another memory limit results in other ranges.
        parts = [self._merged_path(f"{name}-{low:016x}-{high:016x}") for low, high in ranges]
        yield from self._merge("build", [level] * len(parts), ranges, parts)

    def _merged_path(self, name: str) -> Path:
        return self.work / f"merged-{name}.parquet"

    def _merge(
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
        merged = self.executor.map(runs.merge_runs, itertools.compress(tasks, missing))
        bar = self.progress.add_task(name, total=len(outputs), note="")
        for path, wanted in zip(outputs, missing, strict=True):
            yield next(merged) if wanted else path
            self.progress.advance(bar)


def count_unit(
    unit: Unit, note: str, layout: WindowLayout, eos: int | None, directory: Path, memory: int
) -> tuple[int, Stats]:
    """Task: encodes a unit and writes its run; returns the unit's number and the run's statistics.

    Args:
      unit: the documents.
      note: stored with the run.
      layout: layout of the windows.
      eos: token that ends every document, unless None.
      directory: holds `tokenizer.json`; receives the run.
      memory: bytes for grouping and sorting.
    """
    backend = _load(directory / "tokenizer.json")
    batches = text_tokenizer.batches(unit.documents)
    encoded = (text_tokenizer.encode(backend, batch, eos) for batch in batches)
    path = runs.run_path(directory, unit.number)
    return unit.number, runs.write_run(encoded, layout, path, memory, note)


@functools.lru_cache(maxsize=1)
def _load(path: Path) -> tokenizers.Tokenizer:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker per core
    return tokenizers.Tokenizer.from_file(str(path))
