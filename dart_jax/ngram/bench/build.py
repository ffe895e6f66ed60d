"""Builds the n-gram file of the benchmark and times it."""

from __future__ import annotations

import multiprocessing
import os
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from dart_jax.errors import UserError
from dart_jax.interruption import HeldBack
from dart_jax.memory import parse_memory, peak_memory
from dart_jax.ngram import runs
from dart_jax.ngram.bench.config import BenchConfig
from dart_jax.ngram.bench.results import Results
from dart_jax.ngram.builder import NgramBuilder
from dart_jax.ngram.model import NgramModel
from dart_jax.ngram.windows import WindowLayout
from dart_jax.text.fingerprint import vocabulary_size
from dart_jax.text.tokenizer import Tokenizer

LEAST_SORT = 32 * 10**6  # minimum bytes for DuckDB


def tokenise(config: BenchConfig, work: Path, console: Console) -> tuple[NDArray[np.int32], int]:
    """Tokenises the text to count and writes tokens.i32 and offsets.npy.

    Returns:
      The tokens held out for the queries, and the vocabulary size.
    """
    tokenizer = Tokenizer.load(config.tokenizer).backend
    files = text_files(config.data)
    order = np.random.default_rng(0).permutation(len(files))
    counted, held_out, size = [], [], 0
    batches = np.array_split(order, len(order) // 200 + 1)
    for batch in track(batches, "tokens", console=console, transient=True):
        texts = [files[place].read_text(encoding="utf-8", errors="ignore") for place in batch]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids = np.array(encoding.ids, np.int32)
            (held_out if len(counted) >= 49 * (len(held_out) + 1) else counted).append(ids)
            size += len(ids)
        if size >= config.tokens:
            break
    if sum(map(len, held_out)) < 1000:
        raise UserError("too little text to measure with; name more with --data")
    np.concatenate(counted).tofile(work / "tokens.i32")
    np.save(work / "offsets.npy", np.cumsum([0, *map(len, counted)]))
    return np.concatenate(held_out), vocabulary_size(tokenizer)


def new_process() -> Pool:
    """Returns a pool of one new process, whose memory is then only that of its work."""
    with HeldBack():  # this process handles Ctrl-C
        return multiprocessing.get_context("spawn").Pool(1)


def text_files(data: tuple[Path, ...]) -> list[Path]:
    """Expands the paths of the command line to files, directories recursively."""
    if not data:
        roots = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
        return sorted({file for root in roots for file in root.rglob("*.py") if file.is_file()})
    files = []
    for path in data:
        if not path.exists():
            raise UserError(f"no file or directory {path}")
        files += [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
    return sorted(files)


def build(
    config: BenchConfig, work: Path, vocab_size: int, results: Results, console: Console
) -> Path:
    """Counts the tokens in a separate process, on one core and within the given memory."""
    memory = parse_memory(config.memory)
    out = work / "model.dng"
    with console.status("counting"), new_process() as pool:
        layout = WindowLayout(config.order, vocab_size)
        seconds, before, peak = pool.apply(_build, (work, layout, memory, out))
    tokens = int(np.load(work / "offsets.npy")[-1])
    rate = tokens / seconds
    results.add("tokens", tokens, f"{tokens:,}")
    ngrams = sum(NgramModel.load(out).sizes)
    results.add("n-grams", ngrams, f"{ngrams:,}")
    results.add("building", rate, f"{rate / 1e6:.1f} M tokens/s", ">= 9 M per core")
    results.add(
        "building, peak memory",
        peak,
        f"{peak / 1e6:,.0f} MB ({before / 1e6:,.0f} MB before it began)",
        f"<= {memory / 1e6:,.0f} MB",
    )
    windows = tokens * layout.words * 8
    results.add("building, windows", windows, f"{windows / 1e6:,.0f} MB")
    return out


def _build(work: Path, layout: WindowLayout, memory: int, out: Path) -> tuple[float, int, int]:
    """Writes runs, merges them, writes the file. Returns seconds, peak memory before and after."""
    before = peak_memory()
    offsets = np.load(work / "offsets.npy")
    sort = (memory - before) // 4  # the rest is for windows and pages of the files
    if sort < LEAST_SORT:
        raise UserError(f"--memory must be at least {(before + 4 * LEAST_SORT) / 1e6:.0f}MB")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        directory = Path(scratch)
        inputs = []
        for number, batches in enumerate(_units(work / "tokens.i32", offsets, sort // runs.SLICE)):
            inputs.append(directory / f"run-{number:06d}.parquet")
            runs.write_run(batches, layout, inputs[-1], sort)
        builder = NgramBuilder(layout, directory)
        for low, high in runs.split(inputs, runs.rows_in(sort, layout)):
            part = runs.merge_runs(inputs, layout, low, high, directory / "part.parquet", sort)
            builder.add(*runs.read_run(part, layout))
        builder.write(out)
    return time.perf_counter() - began, before, peak_memory()


def _units(
    path: Path, offsets: NDArray[np.int64], size: int
) -> Iterator[Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]]:
    """Yields the documents in batches, each as smaller batches that fit the cache."""

    def batches(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
        while first < last:
            end = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
            end = min(max(end, first + 1), last)
            yield first, end
            first = end

    def small(first: int, last: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        for begin, end in batches(first, last, 2**18):
            start, stop = int(offsets[begin]), int(offsets[end])
            tokens = np.fromfile(path, np.int32, stop - start, offset=4 * start)
            yield tokens, offsets[begin : end + 1] - start

    for first, last in batches(0, len(offsets) - 1, size):
        yield small(first, last)


def measure_engines(work: Path, layout: WindowLayout, results: Results) -> None:
    """Times alternatives for sorting and grouping the windows, in memory and on one core."""
    tokens, offsets = np.fromfile(work / "tokens.i32", np.int32), np.load(work / "offsets.npy")
    windows = layout.windows(tokens, offsets)
    columns = {f"w{i}": np.ascontiguousarray(windows[:, i]) for i in range(layout.words)}
    names = ", ".join(columns)

    def by_numpy() -> int:
        if layout.words == 1:
            ordered = np.sort(windows[:, 0])[:, None]
        else:
            ordered = windows[np.lexsort(windows.T[::-1])]
        return 1 + int((ordered[1:] != ordered[:-1]).any(axis=1).sum())

    def by_duckdb() -> int:
        with duckdb.connect(config={"threads": 1}) as database:
            database.register("windows", columns)
            query = f"select {names}, count(*) n from windows group by all order by all"
            return len(database.execute(query).fetchnumpy()["n"])

    def by_polars() -> int:
        os.environ["POLARS_MAX_THREADS"] = "1"  # read when it is imported
        import polars  # pyright: ignore[reportMissingImports]

        return len(polars.DataFrame(columns).group_by(*columns).len().sort(*columns))

    for engine in (by_numpy, by_duckdb, by_polars):
        try:
            engine()
        except ImportError:
            continue
        times = []
        for _ in range(3):
            began = time.perf_counter()
            engine()
            times.append(time.perf_counter() - began)
        rate = len(tokens) / float(np.median(times))
        name = f"grouping {engine.__name__.replace('_', ' ')}"
        results.add(name, rate, f"{rate / 1e6:.1f} M tokens/s")
