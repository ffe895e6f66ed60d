"""The tasks that turn documents into merged window counts, and their order.

    units of text --count_unit--> runs --merge_runs--> fewer, larger runs --merge_runs--> parts

The parts hold ascending ranges of windows. A task whose output file exists is not run again: a run
records a digest of its documents, and merged files are named by the runs that they are from.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress

from dart_jax.data.records import PARQUET, Skipped, refuse
from dart_jax.errors import UserError
from dart_jax.ngram import WindowLayout, runs
from dart_jax.ngram.runs import MAX_WORD, Stats
from dart_jax.text.tokenizer import Tokenizer
from train.counting.workers import Workers
from train.data.encoding import Encoder
from train.data.examples import LONGEST, Example, batched, digest_of

MB = 10**6
DRIVER = 384 * MB + PARQUET  # the process that reads, distributes and builds
WORKER = 256 * MB  # a worker, besides its units and its database
ENOUGH = 192 * MB  # for these

UNIT = 8 * MB  # characters; up to five copies may be in flight per worker
FAN_IN = 256  # runs merged at a time
PART = 2**21  # maximum rows that the driver processes at a time


class Unit(NamedTuple):
    """Examples that are counted together, at least one; the number is the unit's in the corpus's
    order, from 0."""

    number: int
    examples: list[Example]

    @property
    def digest(self) -> int:
        """A 64-bit digest of the contents."""
        contents = [(digest_of(each.content), each.first, each.last) for each in self.examples]
        return int.from_bytes(hashlib.blake2b(repr(contents).encode(), digest_size=8).digest())


class Encoding(NamedTuple):
    """The encoding of a corpus: a `tokenizer.json` or a directory with a tokenizer's files, JSON
    for the chat template, and the token that ends every document, unless None."""

    tokenizer: Path
    template_kwargs: str
    eos: int | None

    def encode(
        self, examples: Sequence[Example], bad: Callable[[UserError], None]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields batches of documents: their tokens, int32 [n], and offsets, int64 [documents + 1].
        Every document ends with `eos`, unless a further piece of it follows. An example that cannot
        be used is left out, and `bad` is called with the error."""
        encoder = _encoder(self.tokenizer, self.template_kwargs)
        for batch in batched(examples, LONGEST):
            tokens, offsets = [np.zeros(0, np.int32)], [0]
            for example, document in zip(batch, encoder.encode(batch, bad=bad), strict=True):
                if document is None or not len(document.tokens):
                    continue
                ids = document.tokens
                if self.eos is not None and example.last and ids[-1] != self.eos:
                    ids = np.append(ids, np.int32(self.eos))
                tokens.append(ids)
                offsets.append(offsets[-1] + len(ids))
            yield np.concatenate(tokens), np.array(offsets)


@functools.lru_cache(maxsize=1)
def _encoder(path: Path, template_kwargs: str) -> Encoder:
    tokenizer = Tokenizer.load(path)
    return Encoder(tokenizer, tokenizer.vocab_size, "all", json.loads(template_kwargs))


def divide(memory: int, workers: int) -> tuple[int, int]:
    """Divides `memory` bytes: for reading in the driver, and for sorting in each worker; raises
    UserError if they are too few."""
    least = least_memory(workers)
    if memory < least:
        need = "1 worker needs" if workers == 1 else f"{workers} workers need"
        one = f", one needs {least_memory(1) // MB}MB" if workers > 1 else ""
        raise UserError(f"--memory {memory // MB}MB is too little: {need} {-(-least // MB)}MB{one}")
    spare = memory - least  # a quarter of which is for reading
    free = ENOUGH + (spare - spare // 4) // workers
    return PARQUET + spare // 4, free // 2


def least_memory(workers: int) -> int:
    """Returns the least memory to count with so many workers, in bytes."""
    return DRIVER + workers * (WORKER + ENOUGH)


class Totals(NamedTuple):
    """Totals over all runs: their number, documents (each piece of a long one counts), tokens
    with ends of documents, `new` ones counted by this process, and a digest of the documents."""

    runs: int
    documents: int
    tokens: int
    new: int
    digest: int


@dataclasses.dataclass(frozen=True)
class Counting:
    """Runs the tasks, whose files are in `work`, by the workers, each with `memory` bytes for
    grouping and sorting; counts the records that cannot be used, which it skips or refuses."""

    work: Path
    layout: WindowLayout
    memory: int
    workers: Workers
    progress: Progress
    skipped: Skipped = dataclasses.field(default_factory=Skipped)
    skip_bad: bool = False

    def count(self, corpus: Iterable[Example], size: int, encoding: Encoding) -> Totals:
        """Counts the units of a corpus of `size` bytes whose runs are missing or of other
        documents, and writes these; raises UserError if there is no text, or bad data."""
        earlier, stats, digest = runs.read_stats(self.work), dict[int, Stats](), 0
        bar = self.progress.add_task("count", total=size, note="")
        new, began = 0, time.perf_counter()

        def tasks() -> Iterator[tuple[Any, ...]]:
            nonlocal digest
            for unit in itertools.starmap(Unit, enumerate(batched(corpus, UNIT))):
                self.progress.update(bar, completed=unit.examples[-1].read)
                own = str(unit.digest)
                digest = zlib.crc32(own.encode(), digest)
                counted, _, skipped = earlier.get(unit.number, Stats(0, 0)).note.partition(" ")
                if counted == own:
                    stats[unit.number] = earlier[unit.number]
                    self.skipped.count += int(skipped)
                else:
                    yield unit, encoding, self.layout, self.work, self.memory, self.skip_bad

        for number, counted, skipped in self.workers.map(count_unit, tasks()):
            stats[number] = counted
            self.skipped.count += skipped.count
            self.skipped.first = self.skipped.first or skipped.first
            new += counted.tokens
            rate = new / (time.perf_counter() - began)
            self.progress.update(bar, note=f"{new:,} tokens, {rate:,.0f} tokens/s")
        tokens = sum(each.tokens for each in stats.values())
        if not tokens:
            raise UserError("the data hold no text")
        self.progress.update(bar, completed=size)
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
            if len(level) <= FAN_IN:
                break
            groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
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
        merged = self.workers.map(runs.merge_runs, itertools.compress(tasks, missing))
        bar = self.progress.add_task(name, total=len(outputs), note="")
        for path, wanted in zip(outputs, missing, strict=True):
            yield next(merged) if wanted else path
            self.progress.advance(bar)


def count_unit(
    unit: Unit, encoding: Encoding, layout: WindowLayout, directory: Path, memory: int, skip: bool
) -> tuple[int, Stats, Skipped]:
    """Task: encodes a unit and writes its run, with `memory` bytes for grouping and sorting;
    returns the unit's number, the run's statistics, and what was skipped."""
    skipped = Skipped()
    documents = list(encoding.encode(unit.examples, skipped if skip else refuse))
    note = f"{unit.digest} {skipped.count}"
    path = runs.run_path(directory, unit.number)
    return unit.number, runs.write_run(documents, layout, path, memory, note), skipped
