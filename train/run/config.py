"""The settings of a run, which are the command line of the programs that train."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from dart_jax.errors import UserError
from train.run.mesh import MeshConfig
from train.run.optimizer import OptimizerConfig

# What may be another when a run goes on; of these `accumulate` alone changes what is drawn.
_FREE = ("accumulate", "save_every", "eval_every", "keep", "log_every", "tensorboard", "mesh")
_AT_LEAST_1 = ("steps", "batch", "accumulate", "save_every", "eval_every", "keep", "log_every")


@dataclasses.dataclass(frozen=True)
class TrainerConfig(OptimizerConfig):
    """How long training runs, on what, and what it leaves.

    Raises:
      UserError: a number is out of range.
    """

    steps: int = 1000
    """Updates in all. The learning rate falls over them, so a run goes on to no other number: train
    what it made further by a new run."""
    batch: int = 32
    """Rows of an update, over all devices."""
    accumulate: int = 1
    """Microbatches that an update adds up: the more, the less memory."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """In which the loss is computed; parameters and optimiser stay float32."""
    seed: int = 0
    """Of everything random, in 0..2**32 - 1."""
    save_every: int = 500
    """Steps between checkpoints; evaluations and the last step always leave one."""
    eval_every: int = 500
    """Steps between evaluations; one always ends the run."""
    keep: int = 2
    """Newest checkpoints kept, beside the best."""
    log_every: int = 50
    """Steps between lines, where the output is no terminal."""
    tensorboard: bool = False
    """Write TensorBoard's files as well."""
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    """How devices share the work."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _AT_LEAST_1:
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}, got {self.seed}")

    @property
    def fixed(self) -> dict[str, Any]:
        """What must be the same for a run to go on exactly, by name."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in _FREE}
