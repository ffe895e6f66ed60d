"""Measure the cost of the training objective: `DrafterLoss` against the paper's literal form.

    python -m train.measure
    python -m train.measure --compile-only --context 6400 --positions 8 --hidden-size 2560 \\
        --intermediate-size 9728 --vocab-size 151936 --dtype bfloat16

Both use every prefix of every row, with precomputed features of the target, and return the same
loss and gradient. The literal form attends over one sequence of T + T * m rows; `DrafterLoss` never
builds that sequence. Memory is the compiled program's temporary memory, without arguments and
results. `--compile-only` reports it for shapes that do not fit this device.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.memory import parse_memory
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.pure import Params, abstract_params
from dart_jax.models.rope import Rope
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.figures import (
    COLOURS,
    SMALL,
    Spread,
    error_bars,
    new_panels,
    note,
    save_figure,
    told,
)
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment
from dart_jax.progress import stage
from train.data.batch import Batch, TeacherOutputs
from train.objective import literal
from train.objective.drafter_shape import DrafterShape
from train.objective.loss import DrafterLoss, Objective
from train.objective.predictions import Frozen, PackedForward

_COLOURS = dict(zip(("efficient", "literal"), COLOURS, strict=False))
_HEAD = 64


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
    """What to measure; the default shapes are the demo model's."""

    context: tuple[int, ...] = (128, 256, 512, 1024)
    """Tokens per row."""
    positions: tuple[int, ...] = (4, 8)
    """Numbers of drafted positions, d."""
    batch_size: int = 1
    """Rows per batch."""
    hidden_size: int = 320
    """Hidden size of target and drafter; a multiple of 64."""
    intermediate_size: int = 896
    """Intermediate size of their feed-forward layers."""
    vocab_size: int = 4096
    """Vocabulary size of both."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype in which the loss is computed."""
    chunk: int | None = None
    """As `train.drafter --chunk`."""
    memory: str = "4GB"
    """Memory limit of a program; one that needs more is compiled but not run."""
    compile_only: bool = False
    """Report only the memory of `DrafterLoss`, without creating arrays or running anything."""
    repeats: int = 5
    """Repeats of every measurement."""
    json: Path | None = None
    """Write everything measured to this file."""
    plot: Path | None = None
    """Plot time and memory to this file."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "intermediate_size", "vocab_size", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        _ = parse_memory(self.memory)  # raises
        if not self.context or min(self.context) < 4:
            raise UserError("--context must be lengths of at least 4")
        if not self.positions or min(self.positions) < 1:
            raise UserError("--positions must be numbers of at least 1")
        if self.hidden_size < 1 or self.hidden_size % _HEAD:
            raise UserError(f"--hidden-size must be a multiple of {_HEAD}")


class Measured(NamedTuple):
    """The cost of one implementation of the loss and its gradient.

    Attributes:
      memory: temporary bytes.
      seconds: seconds per step, one figure per repeat; empty if it was not run.
      loss: in nats, the mean over prefixes; None if it was not run.
    """

    memory: int
    seconds: list[float]
    loss: float | None


class Case(NamedTuple):
    """The measurements at one context and number of positions.

    Attributes:
      context: tokens per row, T.
      positions: d.
      efficient: the cost of `DrafterLoss`.
      literal: the cost of the paper's form; None if not measured.
    """

    context: int
    positions: int
    efficient: Measured
    literal: Measured | None


def measure(config: MeasureConfig, context: int, positions: int) -> Case:
    """Compiles both implementations and runs them in turn.

    Raises:
      UserError: the device does not report the memory of a program.
    """
    loss, shapes = _shapes(config, context, positions)
    anchors = jnp.broadcast_to(
        jnp.arange(context, dtype=jnp.int32)[None], (config.batch_size, context)
    )

    def efficient(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
        total, number = loss(params, frozen, batch, jax.random.key(0))
        return total / number

    def literally(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
        total, number = literal.loss(loss, params, frozen, batch, anchors)
        return total / number

    programs, memory = [], []
    for function in (efficient,) if config.compile_only else (efficient, literally):
        compiled = jax.jit(jax.value_and_grad(function)).lower(*shapes).compile()
        analysis = compiled.memory_analysis()
        if analysis is None:
            raise UserError("this device does not report how much memory a program needs")
        memory.append(int(analysis.temp_size_in_bytes))
        programs.append(compiled if memory[-1] <= parse_memory(config.memory) else None)
    if config.compile_only:
        return Case(context, positions, Measured(memory[0], [], None), None)
    seconds, losses = _alternate(programs, _arguments(shapes), config.repeats)
    ours, theirs = (Measured(*each) for each in zip(memory, seconds, losses, strict=True))
    return Case(context, positions, ours, theirs)


def _alternate(
    programs: Sequence[Callable[..., Any] | None], arguments: tuple, repeats: int
) -> tuple[list[list[float]], list[float | None]]:
    """Returns times and losses; none for a program that is None. The first pass is a warm-up."""
    seconds: list[list[float]] = [[] for _ in programs]
    losses: list[float | None] = [None for _ in programs]
    for repeat in range(-1, repeats):
        for number, compiled in enumerate(programs):
            if compiled is None:
                continue
            began = time.perf_counter()
            loss, gradients = jax.block_until_ready(compiled(*arguments))
            if repeat >= 0:
                seconds[number].append(time.perf_counter() - began)
            losses[number] = float(loss)
            del gradients
    return seconds, losses


def _shapes(
    config: MeasureConfig, context: int, positions: int
) -> tuple[DrafterLoss, tuple[Params, Frozen, Batch]]:
    """Returns the objective and the shapes of its arguments."""
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

    # Shapes in place of arrays.
    def rows(kind: DTypeLike, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((config.batch_size, context, *shape), kind)

    def weights(model: TargetConfig | DrafterConfig) -> Params:
        shapes = abstract_params(model)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)

    batch = Batch(
        tokens=rows(jnp.int32),
        document=rows(jnp.int32),
        supervised=rows(jnp.bool),
        outputs=TeacherOutputs(
            features=rows(dtype, 3 * config.hidden_size),
            hidden=rows(dtype, config.hidden_size),
            log_total=rows(jnp.float32),
            best=rows(jnp.int32),
        ),
    )
    ids: Any = jax.ShapeDtypeStruct((config.vocab_size,), jnp.int32)
    loss = DrafterLoss(PackedForward(target, drafter, positions, config.chunk), Objective())
    return loss, (weights(drafter), Frozen(weights(target), ids), batch)


def _arguments(shapes: tuple[Params, Frozen, Batch]) -> tuple[Params, Frozen, Batch]:
    """Returns a random drafter and target, and random rows of one document each."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * rng.standard_normal(leaf.shape), leaf.dtype)

    def weight(leaf: Any) -> jax.Array:
        # Vectors are norm scales.
        return draw(leaf, 0.02) if len(leaf.shape) > 1 else jnp.ones(leaf.shape, leaf.dtype)

    drafter, frozen, batch = shapes
    weights = partial(jax.tree.map, weight)
    vocab = frozen.draft_ids.shape[0]
    filled = Batch(
        tokens=rng.integers(0, vocab, batch.tokens.shape, np.int32),
        document=np.ones(batch.document.shape, np.int32),
        supervised=np.ones(batch.supervised.shape, bool),
        outputs=jax.tree.map(draw, batch.outputs),
    )
    ids = jnp.arange(vocab, dtype=jnp.int32)
    return (
        weights(drafter),
        Frozen(weights(frozen.target), ids),
        jax.tree.map(jnp.asarray, filled),
    )


def table(cases: Sequence[Case], limit: str) -> Table:
    """Returns a table with one row per case."""
    made = Table(title="Loss and gradient of every prefix", title_justify="left")
    made.caption_justify = "left"
    made.caption = (
        "s: median seconds per step and half the range; MB: temporary memory\n"
        "rows: length of the attended sequence\n"
        f"-: not run, as it needs more than --memory {limit}"
    )
    for name in ("T", "d", "rows", "s", "literal rows", "literal s", "x", "MB", "literal MB", "x"):
        made.add_column(name, justify="right")
    for case in cases:
        ours, theirs = case.efficient, case.literal
        row = [str(case.context), str(case.positions), str(case.context), _spread(ours.seconds)]
        memory = f"{ours.memory / 1e6:,.0f}"
        if theirs is None:
            made.add_row(*row, "-", "-", "-", memory, "-", "-")
            continue
        both = ours.seconds and theirs.seconds
        made.add_row(
            *row,
            str(case.context * case.positions),
            _spread(theirs.seconds),
            f"{_median(theirs) / _median(ours):.1f}" if both else "-",
            memory,
            f"{theirs.memory / 1e6:,.0f}",
            f"{theirs.memory / ours.memory:.1f}",
        )
    return made


def growth(cases: Sequence[Case]) -> list[str]:
    """Returns how both costs grow with d, one line per context."""
    lines = []
    for context in dict.fromkeys(case.context for case in cases):
        own = [case for case in cases if case.context == context]
        few, many = own[0], own[-1]
        if few is many:
            continue
        ratios = []
        for name in ("efficient", "literal"):
            a, b = getattr(few, name), getattr(many, name)
            if a is None or b is None:
                continue
            run = a.seconds and b.seconds
            spent = f"{_median(b) / _median(a):.2f} x time, " if run else ""
            ratios.append(f"{name} {spent}{b.memory / a.memory:.2f} x memory")
        lines.append(f"T {context}, d {few.positions} -> {many.positions}: {'; '.join(ratios)}")
    return lines


def draw(cases: Sequence[Case], path: Path) -> None:
    """Plots time and memory over the context."""
    figure, panels = new_panels(2, columns=2)
    numbers = dict.fromkeys(case.positions for case in cases)
    styles = dict(zip(numbers, cycle(("o-", "s--", "^:")), strict=False))
    for name, colour in _COLOURS.items():
        for positions, style in styles.items():
            of_number = [case for case in cases if case.positions == positions]
            own = [(c.context, each) for c in of_number if (each := getattr(c, name)) is not None]
            run = [(context, each) for context, each in own if each.seconds]
            label = f"{name}, d = {positions}"
            if run:
                times = [_median(each) for _, each in run]
                panels[0].plot([c for c, _ in run], times, style, color=colour, label=label)
                spreads = [Spread.range(each.seconds) for _, each in run]
                error_bars(panels[0], [context for context, _ in run], spreads, colour)
            memory = [each.memory / 1e6 for _, each in own]
            panels[1].plot([c for c, _ in own], memory, style, color=colour, label=label)
    for axes, title in zip(panels, ("seconds per step", "temporary memory, MB"), strict=True):
        axes.set(title=title, xlabel="context, tokens", xscale="log", yscale="log")
        if axes.lines:
            axes.legend(fontsize=SMALL)
    repeats = max(len(case.efficient.seconds) for case in cases)
    if repeats:
        note(figure, f"Error bars of the time: {told('range', repeats)}.")
    save_figure(figure, path)


def run(config: MeasureConfig, console: Console) -> list[Case]:
    """Measures and reports."""
    check_outputs(config.json, drawing=config.plot)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    cases = []
    for context in config.context:
        for positions in config.positions:
            with stage(f"T {context}, d {positions}", console):
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
                "literal": None if case.literal is None else case.literal._asdict(),
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
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    with program():
        run(parse(MeasureConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
