"""Measure the memory of the training objective: loss and gradient of every prefix of a row.

    python -m train.recipes.measure
    python -m train.recipes.measure --target Qwen/Qwen3-4B --context 6400 --dtype bfloat16

The target's features are computed before. Memory is the compiled program's temporary memory,
without arguments and results. Nothing is run and only the target's config is read, so that it need
not fit this device.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import Params, abstract_params
from dart_jax.programs.command_line import check_least, check_some, parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment, write_report
from dart_jax.programs.tables import table
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import read_target_config
from train.data.batch import Batch, TeacherOutputs
from train.objective.drafter_shape import DrafterShape
from train.objective.loss import DrafterLoss, Objective
from train.objective.predictions import Frozen, PackedForward


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
    """The shapes to measure."""

    target: str = str(DEMO / "target")
    """Directory or hub repository of the target."""
    context: tuple[int, ...] = (128, 256, 512, 1024)
    """Tokens per row."""
    positions: tuple[int, ...] = (4, 8)
    """Numbers of drafted positions, d."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype in which the loss is computed."""
    json: Path | None = None
    """Write the measurements to this file."""

    def __post_init__(self) -> None:
        check_some(self, "context", "positions")
        check_least(self, context=4, positions=1)


def measure(target: TargetConfig, context: int, positions: int, dtype: DTypeLike) -> int:
    """Returns the temporary bytes of the loss and its gradient, for one row; raises UserError if
    the device does not report them."""
    drafter = DrafterShape(positions=positions).config(target)
    loss = DrafterLoss(PackedForward(target, drafter, positions), Objective())

    def rows(kind: DTypeLike, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((1, context, *shape), kind)

    def weights(model: Any) -> Params:
        return jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, dtype), abstract_params(model))

    def mean(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
        total, number = loss(params, frozen, batch, jax.random.key(0))
        return total / number

    d = target.hidden_size
    outputs = TeacherOutputs(rows(dtype, 3 * d), rows(dtype, d), rows(jnp.float32), rows(jnp.int32))
    batch = Batch(rows(jnp.int32), rows(jnp.int32), rows(jnp.bool), outputs)
    frozen = Frozen(weights(target), jnp.arange(drafter.draft_vocab_size, dtype=jnp.int32))
    compiled = jax.jit(jax.value_and_grad(mean)).lower(weights(drafter), frozen, batch).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise UserError("this device does not report how much memory a program needs")
    return int(analysis.temp_size_in_bytes)


def run(config: MeasureConfig, console: Console) -> None:
    """Measures every case, prints a table of them and writes the report."""
    check_outputs(config.json)
    target = read_target_config(hub.resolve(config.target, patterns=("config.json",)))
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    cases = itertools.product(config.context, config.positions)
    found = [(t, d, measure(target, t, d, jnp.dtype(config.dtype)) / 1e6) for t, d in cases]
    columns, title = ("T", "d", "MB"), "Loss and gradient of every prefix"
    rows = [(str(t), str(d), f"{megabytes:,.1f}") for t, d, megabytes in found]
    printed = table(title, columns, rows, "MB: temporary memory")
    console.print(printed)
    measurements = [dict(zip(columns, case, strict=True)) for case in found]
    title = "Memory of the training objective"
    write_report(config, title, [printed], measurements=measurements)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    with program():
        run(parse(MeasureConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
