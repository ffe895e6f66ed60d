"""Measures the n-gram engine: building, size, opening, memory, search, and calls from XLA.

Figures of the reference implementation stand beside ours. They were measured once, with its own
sources and on 2 cores of an AMD EPYC (Zen 4): 47.8 M tokens of text and 12.3 M n-grams.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import platform
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import duckdb
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.memory import parse_memory, peak_memory
from dart_jax.model import DEMO
from dart_jax.ngram import runs
from dart_jax.ngram.builder import NgramBuilder
from dart_jax.ngram.fingerprint import vocabulary_size
from dart_jax.ngram.model import NgramModel
from dart_jax.ngram.windows import WindowLayout
from dart_jax.ngram.workload import Drafts, generate, make_drafts
from dart_jax.pruner import Handover, Pruner, trees_inside
from dart_jax.tokenizer import Tokenizer

LEAST_SORT = 32 * 10**6  # bytes for DuckDB
MADE_UP = "made up: "  # before what is measured of a made-up model
VOCABULARY = 151_936  # of that model: Qwen3's

# The reference's, as above.
REFERENCE = {
    "bytes an n-gram": "36",
    "memory, bytes an n-gram": "142",
    "open": "2,000 ms",
    "search, C++": "960 us",
    "search, Python": "1,059 us; as shipped 2,888",
    "building": "1.7 M tokens/s",
}


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """Measure building, size, opening, memory and search on real text."""

    data: tuple[Path, ...] = ()
    """Files or directories of text; by default all Python sources of this environment."""
    tokenizer: Path = DEMO / "target"
    """Directory with a tokenizer.json."""
    tokens: int = 100_000_000
    """Tokens taken at most; one document in fifty of them is kept for the queries."""
    order: int = 3
    """Tokens in the longest n-grams."""
    memory: str = "600MB"
    """For the process that builds."""
    queries: int = 2000
    """Searches timed."""
    nodes: int = 59
    """Nodes of a tree, the root not counted."""
    generate: float = 0
    """Also a made-up model of so many n-grams, of a vocabulary of 151,936: 1.2e9 is the published
    model's size, and takes 20 GB of disk and a quarter of an hour."""
    work: Path | None = None
    """Directory for all files; by default a temporary one."""
    seed: int = 0
    """Of queries and made-up n-grams."""
    engines: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also what else could group and sort the windows: numpy, DuckDB, polars (if installed)."""
    json: Path | None = None
    """Write everything measured to this file."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    value: float
    text: str
    bar: str


class Results:
    """What was measured, in order."""

    def __init__(self):
        self.rows: list[Row] = []

    def add(self, what: str, value: float, text: str, bar: str = "") -> None:
        """Notes one figure."""
        self.rows.append(Row(what, value, text, bar))

    def table(self) -> Table:
        """All of it, with the reference's figures beside."""
        table = Table("", "dart_jax", "wanted", "reference", box=box.SIMPLE)
        for row in self.rows:
            table.add_row(
                row.what, row.text, row.bar, REFERENCE.get(row.what.removeprefix(MADE_UP), "")
            )
        return table


def bench(config: BenchConfig, console: Console) -> None:
    """Runs the command.

    Raises:
      UserError: there is too little text, or a bad setting.
    """
    if config.queries < 100 or config.nodes < 1:
        raise UserError("--queries must be at least 100 and --nodes at least 1")
    rng = np.random.default_rng(config.seed)
    results = Results()
    with tempfile.TemporaryDirectory() as temporary:
        work = config.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        held_out, vocab_size = tokenise(config, work, console)
        model = build(config, work, vocab_size, results, console)
        measure_file(model, results)
        if config.engines:
            measure_engines(work, WindowLayout(config.order, vocab_size), results)
        loaded = NgramModel.load(model)
        drafts = make_drafts(loaded, held_out, config.queries, rng)
        measure_search(loaded, drafts, config.nodes, results, bars=(60e-6, 120e-6, 75e-6))
        measure_calls(loaded, drafts, config.nodes, results)
        if config.generate:
            measure_generated(config, work, held_out, results, console, rng)
    console.print(results.table())
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"{config.queries} queries of held-out text, trees of {config.nodes} nodes, one core: "
        "median and 99th percentile"
    )
    if config.json is not None:
        rows = [dataclasses.asdict(row) for row in results.rows]
        write_atomically(config.json, json.dumps(rows, indent=1).encode())


def tokenise(config: BenchConfig, work: Path, console: Console) -> tuple[NDArray[np.int32], int]:
    """Writes tokens.i32 and offsets.npy of the text to count.

    Returns:
      The tokens kept for the queries, and the vocabulary's size.
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


def text_files(data: tuple[Path, ...]) -> list[Path]:
    """The files of a command line's paths, directories searched for all their files."""
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
    """Counts the tokens in a process of its own, on one core and within the memory asked for."""
    memory = parse_memory(config.memory)
    out = work / "model.dng"
    with console.status("counting"), multiprocessing.get_context("spawn").Pool(1) as pool:
        layout = WindowLayout(config.order, vocab_size)
        seconds, before, peak = pool.apply(_build, (work, layout, memory, out))
    tokens = int(np.load(work / "offsets.npy")[-1])
    rate = tokens / seconds
    results.add("tokens", tokens, f"{tokens:,}")
    ngrams = sum(NgramModel.load(out).sizes)
    results.add("n-grams", ngrams, f"{ngrams:,}")
    results.add("building", rate, f"{rate / 1e6:.1f} M tokens/s", ">= 9 M a core")
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
    """Runs, their merge, and the file. Returns seconds, and peak memory before and after."""
    before = peak_memory()
    offsets = np.load(work / "offsets.npy")
    sort = (memory - before) // 4  # beside it, windows and pages of the files
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
    """The documents in batches, each given in batches of its own that fit the cache."""

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
    """Ways to find the distinct windows in order, everything in memory, on one core."""
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


def measure_file(path: Path, results: Results, name: str = "") -> None:
    """Size, opening, and memory that two processes with the same file open share."""
    size = path.stat().st_size
    model = NgramModel.load(path)
    ratio = size / sum(model.sizes)
    bar = "<= 3.0, aim 2.3" if model.exact else ""
    results.add(name + "bytes an n-gram", ratio, f"{ratio:.2f}", bar)
    results.add(name + "file", size, f"{size / 1e6:,.1f} MB")
    checked = _median_open(path, checksums=True)
    results.add(name + "open", checked, f"{1e3 * checked:.2f} ms, checksums included", "<= 5 ms")
    lazily = _median_open(path, checksums=False)
    results.add(name + "open, without checksums", lazily, f"{1e3 * lazily:.2f} ms")
    if sys.platform == "linux":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            private, shared = pool.apply(_mapping, (path,))
        results.add(
            name + "memory of two processes",
            private,
            f"{shared / 1e6:,.1f} MB shared, {private / 1e6:,.1f} MB of their own",
            "the file's size, shared",
        )
        results.add(
            name + "memory, bytes an n-gram",
            shared / sum(model.sizes),
            f"{(shared + private) / sum(model.sizes):.2f}",
        )


def _median_open(path: Path, checksums: bool) -> float:
    times = []
    for _ in range(11):
        began = time.perf_counter()
        NgramModel.load(path, checksums=checksums)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _mapping(path: Path) -> tuple[int, int]:
    """Resident bytes of the mapped file that are this process's own, and those it shares."""
    model = NgramModel.load(path)  # which the parent process has open as well
    private = shared = 0
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            within = line.endswith(str(path.resolve()))
        elif within and line.startswith(("Private_", "Shared_")):
            amount = int(line.split()[1]) * 1024
            private += amount * line.startswith("Private_")
            shared += amount * line.startswith("Shared_")
    del model
    return private, shared


def measure_search(
    model: NgramModel,
    drafts: Drafts,
    nodes: int,
    results: Results,
    *,
    name: str = "",
    bars: tuple[float | None, ...],
) -> None:
    """Time of a search on one core: in C++, and called from Python with one row."""
    search = _core.TreeSearch(model.core, nodes=nodes)
    queries = len(drafts.context)
    trees = np.empty((queries, 3, nodes + 1), np.int32)
    search.timed_search(*drafts, trees)  # warm
    passes = [search.timed_search(*drafts, trees) for _ in range(5)]
    python = []
    for query in range(queries):
        one = slice(query, query + 1)
        row = drafts.context[one], drafts.ids[one], drafts.logits[one], trees[one]
        began = time.perf_counter()
        search.search(*row)
        python.append(time.perf_counter() - began)

    def add(what: str, seconds: float, bar: float | None) -> None:
        wanted = "" if bar is None else f"<= {1e6 * bar:.0f} us"
        results.add(name + what, seconds, f"{1e6 * seconds:.1f} us", wanted)

    median, p99, through_python = bars
    # Of five passes over all queries, the middle one.
    add("search, C++", float(np.median([np.median(times) for times in passes])), median)
    add("search, C++, 99 %", float(np.median([np.percentile(t, 99) for t in passes])), p99)
    add("search, Python", float(np.median(python)), through_python)


def measure_calls(model: NgramModel, drafts: Drafts, nodes: int, results: Results) -> None:
    """Time of the same search inside a jitted loop, called by XLA itself and through Python."""
    handover = Handover(*drafts.ids.shape[1:], path=1)
    pruner = Pruner(handover, nodes, ngram=model)
    queries = len(drafts.context)
    won = np.zeros((queries, 2 + handover.path), np.int32)
    bits = drafts.logits.view(np.int32).reshape(queries, -1)
    packed = np.concatenate([won, drafts.context, drafts.ids.reshape(queries, -1), bits], axis=1)

    def seconds(native: bool) -> float:
        @jax.jit
        def search_all(packed: jax.Array, handle: jax.Array) -> jax.Array:
            def one(query: jax.Array, total: jax.Array) -> jax.Array:
                row = jax.lax.dynamic_slice_in_dim(packed, query, 1)
                trees = trees_inside(handover, nodes, handle, row, native=native)
                return total + trees.sum()

            return jax.lax.fori_loop(0, queries, one, 0)

        search_all(packed, handle).block_until_ready()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            search_all(packed, handle).block_until_ready()
            times.append(time.perf_counter() - began)
        return min(times) / queries

    handle = jnp.int32(pruner.handle)
    for name, native in (("search in a jitted loop", True), ("the same through Python", False)):
        took = seconds(native)
        results.add(name, took, f"{1e6 * took:.1f} us, mean")


def measure_generated(
    config: BenchConfig,
    work: Path,
    text: NDArray[np.int32],
    results: Results,
    console: Console,
    rng: np.random.Generator,
) -> None:
    """The same for a made-up model, whose file is kept in the work directory for the next time."""
    path = work / f"generated-{config.generate:.0f}.dng"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            generate(path, scratch, int(config.generate), VOCABULARY, rng, progress=True)
    began = time.perf_counter()
    model = NgramModel.load(path)
    populated = time.perf_counter() - began
    results.add(MADE_UP + "n-grams", sum(model.sizes), f"{sum(model.sizes):,}")
    results.add(MADE_UP + "first open", populated, f"{populated:.2f} s, checksums included")
    measure_file(path, results, MADE_UP)
    # The text's tokens, spread over the larger vocabulary.
    spread = rng.permutation(VOCABULARY)[: text.max() + 1].astype(np.int32)
    drafts = make_drafts(model, spread[text], config.queries, rng)
    measure_search(model, drafts, config.nodes, results, name=MADE_UP, bars=(120e-6, None, None))
