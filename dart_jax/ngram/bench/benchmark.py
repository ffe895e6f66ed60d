"""Measures the n-gram engine: building, size, opening, memory, search, and calls from XLA.

The results are shown next to those of the reference implementation, which were measured once, with
its own sources, on 2 cores of an AMD EPYC (Zen 4): 47.8 M tokens of text and 12.3 M n-grams.
"""

from __future__ import annotations

import dataclasses
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.files import check_writable
from dart_jax.machine import available_cores
from dart_jax.ngram.bench.build import build, measure_engines, tokenise
from dart_jax.ngram.bench.config import BenchConfig
from dart_jax.ngram.bench.measure import measure_calls, measure_file, measure_search
from dart_jax.ngram.bench.results import MADE_UP, Results
from dart_jax.ngram.bench.workload import generate, make_drafts
from dart_jax.ngram.model import NgramModel
from dart_jax.ngram.windows import WindowLayout
from dart_jax.programs.outputs import check_outputs, write_json

VOCABULARY = 151_936  # of the generated model: Qwen3's


def bench(config: BenchConfig, console: Console) -> None:
    """Runs the command.

    Raises:
      UserError: there is too little text, or an option is invalid.
    """
    if config.queries < 100 or config.tree_nodes < 1:
        raise UserError("--queries must be at least 100 and --tree-nodes at least 1")
    check_outputs(config.json)
    if config.work is not None:
        check_writable(config.work, directory=True)
    rng = np.random.default_rng(config.seed)
    results = Results()
    with tempfile.TemporaryDirectory() as temporary:
        work = config.work or Path(temporary)
        held_out, vocab_size = tokenise(config, work, console)
        model = build(config, work, vocab_size, results, console)
        measure_file(model, results)
        if config.engines:
            measure_engines(work, WindowLayout(config.order, vocab_size), results)
        loaded = NgramModel.load(model)
        drafts = make_drafts(loaded, held_out, config.queries, rng)
        measure_search(loaded, drafts, config.tree_nodes, results, bars=(60e-6, 120e-6, 75e-6))
        measure_calls(loaded, drafts, config.tree_nodes, results)
        if config.generate:
            measure_generated(config, work, held_out, results, console, rng)
    console.print(results.table())
    console.print(
        f"{platform.machine()}, {available_cores()} cores, Python {platform.python_version()}; "
        f"{config.queries} queries of held-out text, trees of {config.tree_nodes} nodes, one core: "
        "median and 99th percentile"
    )
    if config.json is not None:
        rows = [dataclasses.asdict(row) for row in results.rows]
        write_json(config.json, rows)


def measure_generated(
    config: BenchConfig,
    work: Path,
    text: NDArray[np.int32],
    results: Results,
    console: Console,
    rng: np.random.Generator,
) -> None:
    """Measures a made-up model, whose file is kept in the work directory for later runs."""
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
    # Map the text's tokens to random ids of the larger vocabulary.
    spread = rng.permutation(VOCABULARY)[: text.max() + 1].astype(np.int32)
    drafts = make_drafts(model, spread[text], config.queries, rng)
    measure_search(
        model, drafts, config.tree_nodes, results, name=MADE_UP, bars=(120e-6, None, None)
    )
