"""Time every stage of a decode step, and compare it with the device's limit.

    python -m eval.latency
    python -m eval.latency --shape qwen3-8b --context 1024 --tree-nodes 16 60
    python -m eval.latency --model smollm2 --context 64 2047

Uses random weights in real shapes, so nothing is downloaded. Without arguments it measures the
demo's shape on a CPU, otherwise that of Qwen3-8B. With `--model` it divides the steps of a real
one, on a CPU, into parts that add up.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console
from rich.table import Table

from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment, write_report
from dart_jax.progress import stage
from dart_jax.weights.checkpoint import resolve_dtype
from dart_jax.weights.user_cache import enable_compilation_cache
from eval.latency import hardware
from eval.latency.case import STAGES, Row, measure_stages
from eval.latency.cost import costs
from eval.latency.hardware import Hardware
from eval.latency.model import random_model
from eval.latency.parts import load, run_parts
from eval.latency.report import narrow
from eval.latency.shapes import drafter_of, target_of

_CAPTION = (
    "ms: median; ±: half the range; ratio: over the limit, the larger of bytes over the measured "
    "bandwidth of a copy and operations over the measured rate of a product; plain: in plain "
    "steps. A tree pays off where its tau is larger than what its step and search take in these."
)


@dataclasses.dataclass(frozen=True)
class LatencyConfig:
    """The shapes and settings to measure."""

    shape: tuple[str, ...] = ()
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, -30b-a3b, -235b-a22b,
    llama-3-8b, llama-3-70b, llama-3.1-70b, tiny. By default demo on a CPU, otherwise qwen3-8b."""
    context: tuple[int, ...] = ()
    """Cached tokens; by default 128 and 1024 on a CPU, otherwise 2048 and 8192."""
    tree_nodes: tuple[int, ...] = ()
    """Nodes of the trees, without the root; by default 8, 16 and 60 on a CPU, otherwise 16 and
    60."""
    batch_size: tuple[int, ...] = (1,)
    """Sequences decoded together."""
    repeats: int = 5
    """Measurements of every stage."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of weights and activations; auto is float32 on CPU, otherwise bfloat16."""
    model: str | None = None
    """On a CPU: divide the steps of this model into the C++ core's parts and the rest. smollm2 or
    demo with their drafters, or a target's directory, repository or GGUF file without one."""
    drafter_window: int | None = None
    """Positions that the drafter of --model sees, its own included; 0 for all. By default what its
    config.json says."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        for name in self.shape:
            longest = target_of(name).max_length - drafter_of(target_of(name)).num_positions - 1
            if max(self.context, default=0) > longest:
                raise UserError(f"--context must be at most {longest} with --shape {name}")
        if self.model is not None and (self.shape or self.batch_size != (1,)):
            raise UserError("--model is measured alone, without --shape and --batch-size")
        if self.drafter_window is not None and self.model is None:
            raise UserError("--drafter-window is of the drafter of --model; pass --model too")
        check_least(self, context=1, tree_nodes=1, batch_size=1, repeats=1, drafter_window=0)
        if len(set(self.tree_nodes)) < len(self.tree_nodes):
            raise UserError("--tree-nodes must be different numbers")

    def filled(self) -> LatencyConfig:
        """Returns the options with the device's defaults and lower-case shapes."""
        cpu = jax.default_backend() == "cpu"
        return dataclasses.replace(
            self,
            shape=tuple(x.lower() for x in self.shape) or ("demo" if cpu else "qwen3-8b",),
            context=self.context or ((128, 1024) if cpu else (2048, 8192)),
            tree_nodes=self.tree_nodes or ((8, 16, 60) if cpu else (16, 60)),
            dtype=str(resolve_dtype(self.dtype)),
        )


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape in one setting, and the times of its stages."""

    shape: str
    batch: int
    context: int
    rows: list[Row]

    def table(self, limits: Hardware) -> Table:
        """Returns a table with a row per stage and tree size."""
        plain, rows = statistics.median(self.rows[0].seconds), []
        for row in self.rows:
            seconds, cells = statistics.median(row.seconds), ["-"] * 4
            if row.cost is not None:
                limit = row.cost.limit(limits.bandwidth, limits.rate)
                traffic, operations = row.cost.bytes / 1e6, row.cost.operations / 1e9
                cells = [number(x) for x in (traffic, operations, 1e3 * limit, seconds / limit)]
            half = 1e3 * (max(row.seconds) - min(row.seconds)) / 2
            first = [row.stage, str(row.nodes or "-"), number(1e3 * seconds), number(half)]
            rows.append([*first, *cells, number(seconds / plain)])
        columns = ["stage", "nodes", "ms", "±", "MB", "Gop", "limit", "ratio", "plain"]
        title = f"{self.shape}, random weights, batch {self.batch}, context {self.context}"
        return narrow(title, columns, rows, _CAPTION)

    def as_json(self, limits: Hardware) -> dict[str, Any]:
        """Returns the setting, and seconds of every repeat."""
        stages = [
            {
                "stage": row.stage,
                "nodes": row.nodes,
                "seconds": row.seconds,
                "limit": row.cost and row.cost.limit(limits.bandwidth, limits.rate),
                **({} if row.cost is None else row.cost._asdict()),
            }
            for row in self.rows
        ]
        return {"shape": self.shape, "batch": self.batch, "context": self.context, "stages": stages}


def number(value: float) -> str:
    """Formats three significant digits, with at most three decimals."""
    decimals = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def run(config: LatencyConfig, console: Console) -> list[Case]:
    """Measures, prints and writes the report.

    Raises:
      UserError: the report cannot be written, or a case does not fit into the device's memory.
    """
    check_outputs(config.json)
    if config.model is not None:
        contexts, nodes = config.context or (64,), config.tree_nodes or (1, 2, 4, 8, 16)
        model = load(config.model, config.drafter_window)
        table, measured = run_parts(model, config.model, contexts, nodes, config.repeats)
        console.print(table)
        write_report(config, f"Parts of a step: {config.model}", [table], parts=measured)
        return []
    config = config.filled()
    dtype = resolve_dtype(config.dtype)
    cases: list[Case] = []
    output: list[Table] = []
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    with stage("measuring the device's limits", console):
        limits = hardware.measure(dtype)
    for name in config.shape:
        target, most = target_of(name), (max(config.batch_size), max(config.context))
        needed = costs(DecodeConfig(target, drafter_of(target), 1), dtype, *most)["step"].bytes
        if needed > limits.memory:
            raise UserError(
                f"{name} with batch {most[0]} and context {most[1]} needs more than "
                f"{needed / 1e9:.1f} GB, and the device has {limits.memory / 1e9:.1f} GB"
            )
    console.print(
        f"copy: {limits.bandwidth / 1e9:,.1f} GB/s read and written; {config.dtype} product: "
        f"{limits.rate / 1e12:,.3g} Top/s",
        highlight=False,
    )
    for name in config.shape:
        with stage(f"{name}: weights", console):
            model = random_model(name, dtype, Execution.here())
        for context, batch in itertools.product(config.context, config.batch_size):
            with stage(f"{name}, batch {batch}, context {context}", console):
                rows = measure_stages(model, batch, context, config.tree_nodes, config.repeats)
            cases.append(Case(name, batch, context, rows))
            output.append(cases[-1].table(limits))
            console.print(output[-1])
            jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        del model
    if not any(row.stage in STAGES for case in cases for row in case.rows):
        console.print("The profiler records no operations on this device: stages are left out.")
    content = [case.as_json(limits) for case in cases]
    title = f"Stages of a step: {', '.join(config.shape)}"
    write_report(config, title, output, hardware=limits._asdict(), cases=content)
    return cases


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        config = parse(LatencyConfig, args, __doc__)
        enable_compilation_cache()
        run(config, Console())
