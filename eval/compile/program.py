"""Compile the programs of decoding for a GPU or TPU that is not there, and show what they would do.

    python -m eval.compile
    python -m eval.compile --device v6e --method dart --program step
    python -m eval.compile --shape qwen3-8b --batch-size 32 --details 20
    python -m eval.compile --shape tiny --program step loop --check

Nothing is allocated or run: XLA is told what the device is like. Without the device it cannot time
the ways to compute a matrix product and chooses by its own model of costs; what is fused, copied,
updated in place and moved through memory is what the device would run.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
from rich.console import Console

from dart_jax.decoding.search.base import SearchWay
from dart_jax.decoding.search.choice import SearchChoice
from dart_jax.errors import UserError
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs, write_json, write_text
from dart_jax.programs.provenance import environment, revision
from eval.compile.cases import Case, Method, Program
from eval.compile.check import Limits, violations
from eval.compile.devices import (
    ACCELERATORS,
    allow_callbacks,
    compile_lowered,
    compile_only,
    described,
)
from eval.compile.report import care, details, launches, memory, outside_graphs, traffic
from eval.compile.summary import Summary, summarise
from eval.latency.shapes import target_of


@dataclasses.dataclass(frozen=True)
class CompileConfig:
    """What to compile, and for which device."""

    device: Literal["h100", "h200", "b200", "v5e", "v5p", "v6e"] = "h200"
    """GPUs need the extra aot, TPUs the extra tpu (in an environment without CUDA's)."""
    shape: tuple[str, ...] = ("qwen3-8b",)
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, llama-3-8b, tiny."""
    method: tuple[Method, ...] = ("plain", "dart")
    """Ways to draft."""
    program: tuple[Program, ...] = ("step",)
    """prefill, step (verify and draft), search (of the trees), loop (a whole generation in one
    program), or serve (a step of the serving engine, with caches in pages)."""
    search: SearchChoice = "auto"
    """Where trees are searched: native, in C++ on the host, called by XLA, for GPUs; callback, the
    same through Python; or device. auto is the platform's best."""
    ngrams: int = 1_700_000
    """N-grams in the table of a search on the device; by default about the demo model's."""
    batch_size: tuple[int, ...] = (1,)
    """Sequences decoded together."""
    tree_nodes: tuple[int, ...] = (60,)
    """Nodes of the draft tree, beside the root."""
    context: tuple[int, ...] = (2048,)
    """Cached tokens of each sequence."""
    prompt: int = 1024
    """Tokens of the prefill. More than 512 are read in chunks, of which the last is compiled."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """dtype of weights and caches."""
    weights: Literal["stored", "int8"] = "stored"
    """How the weights of linear layers and experts are stored: with that dtype, or in 8 bits."""
    layers: int | None = None
    """Compile only so many layers of the target, to be quicker; at least 7."""
    details: int = 8
    """List the kernels that move the most bytes besides weights and caches; 0 lists none."""
    check: bool = False
    """Exit with status 1 if a program copies a cache or does not update it in place, sorts the
    whole vocabulary, or exchanges data with the host in a loop that needs no search on the host."""
    max_kernels_a_layer: float | None = None
    """Also exit with status 1 if a layer of the target has more kernels."""
    max_ratio: float | None = None
    """Also exit with status 1 if a program moves more than this many times the bytes needed."""
    json: Path | None = None
    """Write all figures to this file."""
    markdown: Path | None = None
    """Write the tables to this file."""

    def __post_init__(self) -> None:
        for name in self.shape:
            target_of(name)
        for name in ("batch_size", "tree_nodes", "context", "prompt"):
            value = getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,), default=0) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if self.layers is not None and self.layers < 7:
            raise UserError("--layers must be at least 7: a drafter reads three different ones")
        if self.search == "native" and ACCELERATORS[self.device].platform != "cuda":
            raise UserError("--search native needs a GPU; choose callback or device")
        if self.ngrams < 1:
            raise UserError("--ngrams must be at least 1")
        if self.details < 0:
            raise UserError("--details must be 0 or more")
        for name in ("max_kernels_a_layer", "max_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name.replace('_', '-')} must be above 0")
            if value is not None and not self.check:
                raise UserError(f"--{name.replace('_', '-')} needs --check")

    @property
    def way(self) -> SearchWay:
        """Where trees are searched."""
        return "device" if self.search == "auto" else self.search

    def cases(self) -> list[Case]:
        """All settings; plain decoding has no tree, so it is in there once."""
        settings = itertools.product(
            self.shape, self.batch_size, self.context, self.method, self.tree_nodes
        )
        execution = ACCELERATORS[self.device].execution
        execution = dataclasses.replace(execution, rounded=self.weights == "int8")
        cases = [
            Case(
                shape.lower(),
                method,
                0 if method == "plain" else nodes,
                batch,
                context,
                self.prompt,
                self.dtype,
                layers=self.layers,
                execution=execution,
                search=self.way,
                ngrams=self.ngrams,
            )
            for shape, batch, context, method, nodes in settings
        ]
        return list(dict.fromkeys(cases))

    def programs(self) -> list[tuple[Case, Program]]:
        """What to compile; only methods that search trees have a search."""
        every = itertools.product(self.cases(), self.program)
        return [(case, name) for case, name in every if name != "search" or case.config.searches]


def run(config: CompileConfig, console: Console) -> list[Summary]:
    """Compiles, prints and writes the reports.

    Raises:
      UserError: a report cannot be written, or the device's compiler is not installed.
    """
    check_outputs(config.json, config.markdown)
    device = compile_only(config.device)
    allow_callbacks()
    accelerator = ACCELERATORS[config.device]
    summaries = []
    for case, name in config.programs():
        title = f"{case.shape}, {case.method}, {name}"
        with console.status(f"compiling {title}"), tempfile.TemporaryDirectory() as dump:
            began = time.perf_counter()
            with described(config.device):
                lowered = case.lower(name, device)
            compiled = compile_lowered(lowered, accelerator, Path(dump))
            seconds = time.perf_counter() - began
            summary = summarise(case, name, compiled, seconds, Path(dump))
        summaries.append(summary)
        jax.clear_caches()
        if config.details:
            console.print(details(summary, config.details).table())
    tables = [table(summaries, accelerator) for table in (traffic, launches, memory, care)]
    for table in tables:
        console.print(table.table())
    for summary in summaries:
        if line := outside_graphs(summary):
            console.print(line, highlight=False)
    if config.json:
        content = {
            "environment": environment(),
            "revision": revision(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": dataclasses.asdict(accelerator),
            "programs": [summary.as_json() for summary in summaries],
        }
        write_json(config.json, content)
    if config.markdown:
        write_text(config.markdown, "\n".join(table.markdown() for table in tables))
    return summaries


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a check failed; 2: bad input, reported in one line."""
    with program():
        config = parse(CompileConfig, args, __doc__)
        jax.config.update("jax_platforms", "cpu")
        summaries = run(config, Console())
        if config.check:
            limits = Limits(config.max_kernels_a_layer, config.max_ratio)
            found = [line for summary in summaries for line in violations(summary, limits)]
            for line in found:
                print(f"failed: {line}", file=sys.stderr)
            if found:
                sys.exit(1)
            print(f"{len(summaries)} programs checked")
