"""Measure the memory of the training objective: loss and gradient of every prefix of a row.

    python -m train.measure
    python -m train.measure --context 6400 --positions 8 --hidden-size 2560 \\
        --intermediate-size 9728 --vocab-size 151936 --dtype bfloat16

The target's features are computed before. Memory is the compiled program's temporary memory,
without arguments and results. Nothing is run, so that the shapes need not fit this device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
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
    hidden_size: int = 320
    """Hidden size of target and drafter; a multiple of 64."""
    intermediate_size: int = 896
    """Intermediate size of their feed-forward layers."""
    vocab_size: int = 4096
    """Vocabulary size of both."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype in which the loss is computed."""

    def __post_init__(self) -> None:
        for name in ("intermediate_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if not self.context or min(self.context) < 4:
            raise UserError("--context must be lengths of at least 4")
        if not self.positions or min(self.positions) < 1:
            raise UserError("--positions must be numbers of at least 1")
        if self.hidden_size < 1 or self.hidden_size % _HEAD:
            raise UserError(f"--hidden-size must be a multiple of {_HEAD}")


def measure(config: MeasureConfig, context: int, positions: int) -> int:
    """Returns the temporary bytes of the loss and its gradient.

    Raises:
      UserError: the device does not report the memory of a program.
    """
    loss, dtype = _loss(config, context, positions), jnp.dtype(config.dtype)

    def rows(kind: DTypeLike, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, context, *shape), kind)

    def weights(model: Any) -> Params:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), abstract_params(model)
        )

    outputs = TeacherOutputs(
        features=rows(dtype, 3 * config.hidden_size),
        hidden=rows(dtype, config.hidden_size),
        log_total=rows(jnp.float32),
        best=rows(jnp.int32),
    )
    batch = Batch(rows(jnp.int32), rows(jnp.int32), rows(jnp.bool), outputs)  # type: ignore
    ids = jnp.arange(config.vocab_size, dtype=jnp.int32)
    frozen = Frozen(weights(loss.forward.target), ids)

    def mean(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
        total, number = loss(params, frozen, batch, jax.random.key(0))
        return total / number

    gradient = jax.jit(jax.value_and_grad(mean))
    compiled = gradient.lower(weights(loss.forward.drafter), frozen, batch).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise UserError("this device does not report how much memory a program needs")
    return int(analysis.temp_size_in_bytes)


def _loss(config: MeasureConfig, context: int, positions: int) -> DrafterLoss:
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
    return DrafterLoss(PackedForward(target, drafter, positions), Objective())


def run(config: MeasureConfig, console: Console) -> None:
    """Measures every case and prints a table of them."""
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    table = Table(title="Loss and gradient of every prefix", title_justify="left")
    table.caption = "MB: temporary memory"
    for name in ("T", "d", "MB"):
        table.add_column(name, justify="right")
    for context in config.context:
        for positions in config.positions:
            with stage(f"T {context}, d {positions}", console):
                memory = measure(config, context, positions)
            table.add_row(str(context), str(positions), f"{memory / 1e6:,.1f}")
    console.print(table)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    with program():
        run(parse(MeasureConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
