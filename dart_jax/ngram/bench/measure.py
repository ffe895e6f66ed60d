"""Measures an n-gram file: size, memory, opening time and search time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jax
import numpy as np

from dart_jax import _core
from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.search.host import HostSearch
from dart_jax.ngram.bench.build import new_process
from dart_jax.ngram.bench.results import Results
from dart_jax.ngram.bench.workload import Drafts
from dart_jax.ngram.model import NgramModel


def measure_file(path: Path, results: Results, name: str = "") -> None:
    """Measures size, opening time, and memory shared by two processes that open the same file."""
    size = path.stat().st_size
    model = NgramModel.load(path)
    ratio = size / sum(model.sizes)
    bar = "<= 3.0, aim 2.3" if model.exact else ""
    results.add(name + "bytes per n-gram", ratio, f"{ratio:.2f}", bar)
    results.add(name + "file", size, f"{size / 1e6:,.1f} MB")
    checked = _median_open(path, checksums=True)
    results.add(name + "open", checked, f"{1e3 * checked:.2f} ms, checksums included", "<= 5 ms")
    lazily = _median_open(path, checksums=False)
    results.add(name + "open, without checksums", lazily, f"{1e3 * lazily:.2f} ms")
    if sys.platform == "linux":
        with new_process() as pool:
            private, shared = pool.apply(_mapping, (path,))
        results.add(
            name + "memory of two processes",
            private,
            f"{shared / 1e6:,.1f} MB shared, {private / 1e6:,.1f} MB of their own",
            "the file's size, shared",
        )
        results.add(
            name + "memory, bytes per n-gram",
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
    """Returns the resident bytes of the mapped file that are private, and those that are shared."""
    model = NgramModel.load(path)  # the parent process has it open as well
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
    """Times a search on one core: in C++, and called from Python with one row."""
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
        target = "" if bar is None else f"<= {1e6 * bar:.0f} us"
        results.add(name + what, seconds, f"{1e6 * seconds:.1f} us", target)

    median, p99, through_python = bars
    # The median of five passes over all queries.
    add("search, C++", float(np.median([np.median(times) for times in passes])), median)
    add("search, C++, 99 %", float(np.median([np.percentile(t, 99) for t in passes])), p99)
    add("search, Python", float(np.median(python)), through_python)


def measure_calls(model: NgramModel, drafts: Drafts, nodes: int, results: Results) -> None:
    """Times the same search inside a jitted loop, called by XLA directly and through Python."""
    host_buffer = HostBuffer(*drafts.ids.shape[1:], path=1)
    queries = len(drafts.context)
    accepted = np.zeros((queries, 2 + host_buffer.path), np.int32)
    bits = drafts.logits.view(np.int32).reshape(queries, -1)
    ids = drafts.ids.reshape(queries, -1)
    packed = np.concatenate([accepted, drafts.context, ids, bits], axis=1)

    def seconds(native: bool) -> float:
        search = HostSearch(host_buffer, nodes, ngram=model, native=native)

        @jax.jit
        def search_all(search: HostSearch, packed: jax.Array) -> jax.Array:
            def one(query: jax.Array, total: jax.Array) -> jax.Array:
                row = jax.lax.dynamic_slice_in_dim(packed, query, 1)
                return total + search.in_program(row).sum()

            return jax.lax.fori_loop(0, queries, one, 0)

        search_all(search, packed).block_until_ready()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            search_all(search, packed).block_until_ready()
            times.append(time.perf_counter() - began)
        return min(times) / queries

    for name, native in (("search in a jitted loop", True), ("the same through Python", False)):
        took = seconds(native)
        results.add(name, took, f"{1e6 * took:.1f} us, mean")
