"""The time of a step on a CPU, by the parts of the C++ core and what is left: XLA and Python."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from typing import Any

import jax
import numpy as np
from rich.table import Table

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.generation.results import Completion
from dart_jax.model import DartModel
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.tables import narrow

_CAPTION = (
    "ms of a step, medians; rows: norms, rotation, gates and rounding in layers; heads: products "
    "outside of layers; drafter: its layer; caches: rows that are kept; other: a call's arguments; "
    "rest: XLA and Python. Parts add up to the step, but for medians."
)

# New tokens of a text, and of one that is subtracted from it: the prompt's reading.
_LONG, _SHORT = 136, 8


def load(name: str, drafter_window: int | None = None) -> DartModel:
    """Loads a named model with its drafter, or a target without, from a directory or a GGUF file.

    Raises:
      UserError: there is none, or no drafter for the window, or the default device is not a CPU.
    """
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
    return narrow(title, columns, rows, _CAPTION), measured
