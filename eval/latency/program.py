"""The program `eval.latency`: measures, prints and writes the report."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment_in_words, write_report
from dart_jax.programs.tables import narrow, show
from dart_jax.progress import stage
from dart_jax.weights.checkpoint import resolve_dtype
from dart_jax.weights.user_cache import enable_compilation_cache
from eval.latency import steps
from eval.latency.config import LatencyConfig
from eval.latency.shapes import cost, drafter_of, random_model, target_of
from eval.latency.steps import Hardware, Row, measure_steps

_CAPTION = (
    "ms: median; ±: half the range; ratio: over the limit, the larger of bytes over the measured "
    "bandwidth of a copy and operations over the measured rate of a product; plain: in plain "
    "steps. A tree pays off where its tau is larger than what its step and search take in these."
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape in one setting, and the times of its steps."""

    shape: str
    batch: int
    context: int
    rows: list[Row]

    def table(self, limits: Hardware) -> Table:
        """Returns a table with a row per step and search."""
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
        stages = []
        for row in self.rows:
            limit = row.cost and row.cost.limit(limits.bandwidth, limits.rate)
            least = {} if row.cost is None else row.cost._asdict()
            figures = {"stage": row.stage, "nodes": row.nodes, "seconds": row.seconds}
            stages.append(figures | {"limit": limit} | least)
        return {"shape": self.shape, "batch": self.batch, "context": self.context, "stages": stages}


def number(value: float) -> str:
    """Formats three significant digits, with at most three decimals."""
    decimals = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def filled(config: LatencyConfig) -> LatencyConfig:
    """Returns the options with the device's defaults and lower-case shapes."""
    cpu = jax.default_backend() == "cpu"
    return dataclasses.replace(
        config,
        shape=tuple(x.lower() for x in config.shape) or ("demo" if cpu else "qwen3-8b",),
        context=config.context or ((128, 1024) if cpu else (2048, 8192)),
        tree_nodes=config.tree_nodes or ((8, 16, 60) if cpu else (16, 60)),
        dtype=str(resolve_dtype(config.dtype)),
    )


def run(config: LatencyConfig, console: Console) -> list[Case]:
    """Measures, prints and writes the report, anew after each case; raises UserError if that cannot
    be written, or a case does not fit into the device's memory."""
    check_outputs(config.json)
    enable_compilation_cache()
    config = filled(config)
    dtype = resolve_dtype(config.dtype)
    cases: list[Case] = []
    output: list[Table] = []
    console.print(environment_in_words())
    with stage("measuring the device's limits", console):
        limits = steps.limits(dtype)
    for name in config.shape:
        target, most = target_of(name), (max(config.batch_size), max(config.context))
        needed = cost(DecodeConfig(target, drafter_of(target), 1), dtype, *most).bytes
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
                rows = measure_steps(model, batch, context, config.tree_nodes, config.repeats)
                cases.append(Case(name, batch, context, list(rows)))
            output.append(cases[-1].table(limits))
            show(console, output[-1])
            content = [case.as_json(limits) for case in cases]
            title = f"Steps: {', '.join(config.shape)}"
            write_report(config, title, output, hardware=limits._asdict(), cases=content)
            jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        del model
    return cases
