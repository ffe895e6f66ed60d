"""The program `eval.latency`: measures, prints and writes the report; on a CPU also a step by the
parts of the C++ core and what is left, XLA and Python."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax import _core
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.generation.results import Completion
from dart_jax.model import DartModel
from dart_jax.models.platform.execution import Execution
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment, write_report
from dart_jax.programs.tables import narrow
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
    """Measures, prints and writes the report.

    Raises:
      UserError: the report cannot be written, or a case does not fit into the device's memory.
    """
    check_outputs(config.json)
    enable_compilation_cache()
    if config.model is not None:
        contexts, nodes = config.context or (64,), config.tree_nodes or (1, 2, 4, 8, 16)
        model = load(config.model, config.drafter_window)
        table, measured = run_parts(model, config.model, contexts, nodes, config.repeats)
        console.print(table)
        write_report(config, f"Parts of a step: {config.model}", [table], parts=measured)
        return []
    config = filled(config)
    dtype = resolve_dtype(config.dtype)
    cases: list[Case] = []
    output: list[Table] = []
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
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
            console.print(output[-1])
            jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        del model
    content = [case.as_json(limits) for case in cases]
    title = f"Steps: {', '.join(config.shape)}"
    write_report(config, title, output, hardware=limits._asdict(), cases=content)
    return cases


_PARTS_CAPTION = (
    "ms of a step, medians; rows: norms, rotation, gates and rounding in layers; heads: products "
    "outside of layers; drafter: its layer; caches: rows that are kept; other: a call's arguments; "
    "rest: XLA and Python. Parts add up to the step, but for medians."
)

# New tokens of a text, and of one that is subtracted from it: the prompt's reading.
_LONG, _SHORT = 136, 8


def load(name: str, drafter_window: int | None = None) -> DartModel:
    """Loads a named model with its drafter, or a target without, from a directory or a GGUF file;
    raises UserError if there is none, or the default device is not a CPU."""
    if jax.default_backend() != "cpu":
        raise UserError("--model divides the steps of the C++ core, which computes on CPUs")
    named = ModelChoice(model=name) if name in ("smollm2", "demo") else ModelChoice(target=name)
    return dataclasses.replace(named, drafter_window=drafter_window).load()


def measure_parts(
    model: DartModel, context: int, nodes: int, repeats: int
) -> list[dict[str, float]]:
    """Measures greedy steps after a prompt of `context` tokens."""
    prompt = (np.arange(context) * 7919 % model.target.vocab_size).tolist()

    def generate(tokens: int) -> tuple[Completion, dict[str, float]]:
        _core.measure_parts(True)
        try:
            text = model.generate(prompt, max_new_tokens=tokens, tree_nodes=nodes, eos_token_id=())
            return text, _core.part_seconds()
        finally:
            _core.measure_parts(False)

    generate(_LONG)  # programs are compiled
    seconds = []
    for _ in range(repeats):
        (short, before), (long, after) = generate(_SHORT), generate(_LONG)
        steps = long.steps - short.steps
        whole = [sum(x.seconds[name] for name in ("device", "search")) for x in (long, short)]
        parts = {name: (after[name] - before[name]) / steps for name in after}
        parts["step"] = (whole[0] - whole[1]) / steps
        parts["rest"] = parts["step"] - sum(parts[name] for name in after)
        seconds.append(parts)
    return seconds


def run_parts(
    model: DartModel, name: str, contexts: tuple[int, ...], nodes: tuple[int, ...], repeats: int
) -> tuple[Table, list[dict[str, Any]]]:
    """Measures a model's steps, plain ones first; returns a table of the parts' medians, and by
    nodes and context the seconds of every part in every repeat, of which `step` is the whole."""
    settings = itertools.product(contexts, (0, *nodes) if model.drafter is not None else (0,))
    measured = [
        {"nodes": n, "context": context, "seconds": measure_parts(model, context, n, repeats)}
        for context, n in settings
    ]
    names = [*(part for part in measured[0]["seconds"][0] if part != "step"), "step"]
    rows = []
    for part in names:
        medians = (statistics.median(x[part] for x in each["seconds"]) for each in measured)
        rows.append([part, *(f"{1e3 * seconds:.3f}" for seconds in medians)])
    columns = ["part", *(f"{each['nodes']} nodes, {each['context']}" for each in measured)]
    title = f"{name}: a step's parts, by nodes and tokens of context"
    return narrow(title, columns, rows, _PARTS_CAPTION), measured
