"""What the objective costs: `DrafterLoss`, as it is trained, beside the paper's literal form.

    python -m train.measure

Both take every prefix of every row, with the target's features at hand, and give the same loss and
gradient. The literal form attends over one sequence of T + T * m rows; `DrafterLoss` holds no such
sequence. The memory is what the compiled program needs beside its arguments and results.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from dart_jax.config import DrafterConfig, TargetConfig
from dart_jax.errors import UserError, one_line_errors
from dart_jax.pure import Params, init_params
from dart_jax.rope import Rope
from train import literal
from train.batch import Batch
from train.objective import DrafterLoss, Objective
from train.outputs import check_outputs, environment, new_figure, save_figure, write_json
from train.predictions import Drafting, Frozen
from train.shape import DrafterShape

_COLOURS = {"efficient": "#4477aa", "literal": "#ee6677"}
_HEAD = 64


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
    """What is measured; the shapes are the demo model's."""

    contexts: tuple[int, ...] = (128, 256, 512, 1024)
    """Tokens of a row."""
    positions: tuple[int, ...] = (4, 8)
    """Positions that are learned, d."""
    batch: int = 1
    """Rows."""
    hidden_size: int = 320
    """Of target and drafter; a multiple of 64."""
    intermediate_size: int = 896
    """Of their feed-forward layers."""
    vocab_size: int = 4096
    """Of both."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """In which the loss is computed."""
    chunk: int | None = None
    """As `train.drafter --chunk`."""
    memory: float = 4e9
    """Bytes; a program that needs more is compiled, but not run."""
    repeats: int = 5
    """Of every measurement."""
    json: Path | None = None
    """Write everything measured to this file."""
    plot: Path | None = None
    """Draw time and memory into this file."""

    def __post_init__(self) -> None:
        for name in ("batch", "intermediate_size", "vocab_size", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if not self.contexts or min(self.contexts) < 4:
            raise UserError("--contexts must be lengths of at least 4")
        if not self.positions or min(self.positions) < 1:
            raise UserError("--positions must be numbers of at least 1")
        if self.hidden_size < 1 or self.hidden_size % _HEAD:
            raise UserError(f"--hidden-size must be a multiple of {_HEAD}")


class Measured(NamedTuple):
    """One way of computing the loss and its gradient.

    Attributes:
      memory: temporary bytes.
      seconds: of a step, one figure a repeat; empty if it was not run.
      loss: in nats, the mean over prefixes; None if it was not run.
    """

    memory: int
    seconds: list[float]
    loss: float | None


class Case(NamedTuple):
    """One context and number of positions.

    Attributes:
      context: tokens of a row, T.
      positions: d.
      efficient: `DrafterLoss`.
      literal: the paper's form.
    """

    context: int
    positions: int
    efficient: Measured
    literal: Measured


def measure(config: MeasureConfig, context: int, positions: int) -> Case:
    """Compiles both, and runs them in turn.

    Raises:
      UserError: the device does not tell how much memory a program needs.
    """
    loss, arguments = _setting(config, context, positions)
    anchors = jnp.broadcast_to(jnp.arange(context, dtype=jnp.int32)[None], (config.batch, context))

    def efficient(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
        total, number = loss(params, frozen, batch, jax.random.key(0))
        return total / number

    def literally(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
        total, number = literal.loss(loss, params, frozen, batch, anchors)
        return total / number

    programs, memory = [], []
    for function in (efficient, literally):
        compiled = jax.jit(jax.value_and_grad(function)).lower(*arguments).compile()
        analysis = compiled.memory_analysis()
        if analysis is None:
            raise UserError("this device does not tell how much memory a program needs")
        memory.append(int(analysis.temp_size_in_bytes))
        programs.append(compiled if memory[-1] <= config.memory else None)
    seconds, losses = _alternate(programs, arguments, config.repeats)
    ways = (Measured(*each) for each in zip(memory, seconds, losses, strict=True))
    return Case(context, positions, *ways)


def _alternate(
    programs: Sequence[Callable[..., Any] | None], arguments: tuple, repeats: int
) -> tuple[list[list[float]], list[float | None]]:
    """Times and losses; nothing for a program that is None. A first pass is not measured."""
    seconds: list[list[float]] = [[] for _ in programs]
    losses: list[float | None] = [None for _ in programs]
    for repeat in range(-1, repeats):
        for number, program in enumerate(programs):
            if program is None:
                continue
            began = time.perf_counter()
            loss, gradients = jax.block_until_ready(program(*arguments))
            if repeat >= 0:
                seconds[number].append(time.perf_counter() - began)
            losses[number] = float(loss)
            del gradients
    return seconds, losses


def _setting(
    config: MeasureConfig, context: int, positions: int
) -> tuple[DrafterLoss, tuple[Params, Frozen, Batch]]:
    """A random drafter, and random rows of one document each."""
    target = TargetConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=8,
        num_attention_heads=config.hidden_size // _HEAD,
        num_key_value_heads=1,
        head_dim=_HEAD,
        rope=Rope(1e4),
        tie_word_embeddings=True,
        max_position_embeddings=max(2048, context),
    )
    drafter = DrafterShape(positions=positions).config(target)
    assert isinstance(drafter, DrafterConfig)
    dtype = jnp.dtype(config.dtype)
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal((config.batch, context, *shape)), dtype)

    def cast(params: Params) -> Params:
        return jax.tree.map(lambda leaf: leaf.astype(dtype), params)

    batch = Batch(
        tokens=rng.integers(0, config.vocab_size, (config.batch, context), np.int32),
        document=np.ones((config.batch, context), np.int32),
        supervised=np.ones((config.batch, context), bool),
        features=draw(3 * config.hidden_size),
        hidden=draw(config.hidden_size),
    )
    ids = jnp.arange(config.vocab_size, dtype=jnp.int32)
    frozen = Frozen(cast(init_params(target, 0)), ids)
    loss = DrafterLoss(Drafting(target, drafter, positions, config.chunk), Objective())
    return loss, (cast(init_params(drafter, 1)), frozen, jax.tree.map(jnp.asarray, batch))


def table(cases: Sequence[Case], limit: float) -> Table:
    """A row a case."""
    made = Table(title="Loss and gradient of every prefix", title_justify="left")
    made.caption_justify = "left"
    made.caption = (
        "s: median of a step and half the spread; MB: temporary memory\n"
        "rows: of the sequence that is attended to\n"
        f"-: not run, as it needs more than --memory {limit:g} bytes"
    )
    for name in ("T", "d", "rows", "s", "literal rows", "literal s", "x", "MB", "literal MB", "x"):
        made.add_column(name, justify="right")
    for case in cases:
        ours, theirs = case.efficient, case.literal
        both = ours.seconds and theirs.seconds
        made.add_row(
            str(case.context),
            str(case.positions),
            str(case.context),
            _spread(ours.seconds),
            str(case.context * case.positions),
            _spread(theirs.seconds),
            f"{_median(theirs) / _median(ours):.1f}" if both else "-",
            f"{ours.memory / 1e6:,.0f}",
            f"{theirs.memory / 1e6:,.0f}",
            f"{theirs.memory / ours.memory:.1f}",
        )
    return made


def growth(cases: Sequence[Case]) -> list[str]:
    """How both grow with d, a line a context."""
    lines = []
    for context in dict.fromkeys(case.context for case in cases):
        own = [case for case in cases if case.context == context]
        few, many = own[0], own[-1]
        if few is many:
            continue
        told = []
        for name in ("efficient", "literal"):
            a, b = getattr(few, name), getattr(many, name)
            run = a.seconds and b.seconds
            spent = f"{_median(b) / _median(a):.2f} x time, " if run else ""
            told.append(f"{name} {spent}{b.memory / a.memory:.2f} x memory")
        lines.append(f"T {context}, d {few.positions} -> {many.positions}: {'; '.join(told)}")
    return lines


def draw(cases: Sequence[Case], path: Path) -> None:
    """Time and memory over the context."""
    figure = new_figure(9, 3.6)
    panels = figure.subplots(1, 2)
    numbers = dict.fromkeys(case.positions for case in cases)
    styles = dict(zip(numbers, cycle(("o-", "s--", "^:")), strict=False))
    for name, colour in _COLOURS.items():
        for positions, style in styles.items():
            own = [(c.context, getattr(c, name)) for c in cases if c.positions == positions]
            run = [(context, each) for context, each in own if each.seconds]
            label = f"{name}, d = {positions}"
            if run:
                times = [_median(each) for _, each in run]
                panels[0].plot([c for c, _ in run], times, style, color=colour, label=label)
            memory = [each.memory / 1e6 for _, each in own]
            panels[1].plot([c for c, _ in own], memory, style, color=colour, label=label)
    for axes, title in zip(panels, ("seconds a step", "temporary memory, MB"), strict=True):
        axes.set(title=title, xlabel="context, tokens", xscale="log", yscale="log")
        axes.legend(fontsize="x-small")
    save_figure(figure, path)


def run(config: MeasureConfig, console: Console) -> list[Case]:
    """Measures and reports."""
    check_outputs(config.json, config.plot)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    cases = []
    for context in config.contexts:
        for positions in config.positions:
            with console.status(f"T {context}, d {positions}"):
                cases.append(measure(config, context, positions))
    console.print(table(cases, config.memory))
    for line in growth(cases):
        console.print(line, highlight=False, soft_wrap=True)
    if config.json:
        content = [
            {
                "context": case.context,
                "positions": case.positions,
                "efficient": case.efficient._asdict(),
                "literal": case.literal._asdict(),
            }
            for case in cases
        ]
        options = dataclasses.asdict(config)
        write_json(
            config.json, {"environment": environment(), "options": options, "cases": content}
        )
    if config.plot:
        draw(cases, config.plot)
    return cases


def _median(measured: Measured) -> float:
    return statistics.median(measured.seconds)


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{statistics.median(seconds):.3f} ±{(max(seconds) - min(seconds)) / 2:.3f}"


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with one_line_errors():
        run(tyro.cli(MeasureConfig, args=args, description=__doc__), Console())


if __name__ == "__main__":
    main()
