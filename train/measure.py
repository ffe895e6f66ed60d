"""Measure the time and memory of the training objective: loss and gradient of every prefix.

    python -m train.measure
    python -m train.measure --compile-only --context 6400 --positions 8 --hidden-size 2560 \\
        --intermediate-size 9728 --vocab-size 151936 --dtype bfloat16

The target's features are computed before. Memory is the compiled program's temporary memory,
without arguments and results. `--compile-only` reports it for shapes that do not fit this device.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.pure import Params, abstract_params
from dart_jax.models.rope import Rope
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.provenance import environment
from dart_jax.progress import stage
from train.data.batch import Batch, TeacherOutputs
from train.objective.drafter_shape import DrafterShape
from train.objective.loss import DrafterLoss, Objective
from train.objective.predictions import Frozen, PackedForward

_HEAD = 64  # dimensions of an attention head


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
    """The shapes to measure; the default is the demo model's."""

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
    compile_only: bool = False
    """Report only the memory, without creating arrays or running anything."""
    repeats: int = 5
    """Repeats of every measurement."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "intermediate_size", "vocab_size", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if not self.context or min(self.context) < 4:
            raise UserError("--context must be lengths of at least 4")
        if not self.positions or min(self.positions) < 1:
            raise UserError("--positions must be numbers of at least 1")
        if self.hidden_size < 1 or self.hidden_size % _HEAD:
            raise UserError(f"--hidden-size must be a multiple of {_HEAD}")


def measure(config: MeasureConfig, context: int, positions: int) -> tuple[int, list[float]]:
    """Returns the temporary bytes of the loss and its gradient, and the seconds of each repeat.

    Raises:
      UserError: the device does not report the memory of a program.
    """
    loss, shapes = _shapes(config, context, positions)

    def mean(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
        total, number = loss(params, frozen, batch, jax.random.key(0))
        return total / number

    compiled = jax.jit(jax.value_and_grad(mean)).lower(*shapes).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise UserError("this device does not report how much memory a program needs")
    seconds: list[float] = []
    if not config.compile_only:
        arguments = _arguments(shapes)
        for _ in range(config.repeats + 1):
            began = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            seconds.append(time.perf_counter() - began)
    return int(analysis.temp_size_in_bytes), seconds[1:]  # the first is a warm-up


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


def run(config: MeasureConfig, console: Console) -> Table:
    """Measures every case and prints a table of them, which it returns."""
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    table = Table(title="Loss and gradient of every prefix", title_justify="left")
    table.caption = "s: median seconds per step and half the range; MB: temporary memory"
    for name in ("T", "d", "s", "MB"):
        table.add_column(name, justify="right")
    for context in config.context:
        for positions in config.positions:
            with stage(f"T {context}, d {positions}", console):
                memory, seconds = measure(config, context, positions)
            spread = (
                f"{statistics.median(seconds):.3f} ±{np.ptp(seconds) / 2:.3f}" if seconds else "-"
            )
            table.add_row(str(context), str(positions), spread, f"{memory / 1e6:,.1f}")
    console.print(table)
    return table


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    with program():
        run(parse(MeasureConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
