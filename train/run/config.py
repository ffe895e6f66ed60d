"""The settings of a run, which are command-line options of the training programs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least

# Options that may change when a run resumes; of these only `accumulate` changes random draws.
FREE = ("accumulate", "save_every", "eval_every", "keep", "mesh")
_STEPS = 1000  # by default


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser; the defaults are the paper's where it states them."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon orthogonalises the updates of matrices (Jordan 2024), scaled to the size of AdamW's
    (arXiv 2502.16982); embeddings, heads and vectors are AdamW's, with Nesterov's momentum."""
    lr: float = 2e-5
    """Learning rate at the end of the warm-up."""
    warmup: float = 0.05
    """Fraction of the steps over which the learning rate rises, from 0 to below 1."""
    final_lr: float = 0.0
    """Final learning rate, at the end of the cosine, as a fraction of --lr."""
    clip: float = 0.5
    """Gradients are clipped to this global norm; inf does not clip."""
    b1: float = 0.9
    """Decay of the running mean of gradients."""
    b2: float = 0.999
    """Decay of the running mean of squared gradients."""
    weight_decay: float = 0.0
    """Weight decay of matrices; vectors are not decayed."""

    def __post_init__(self) -> None:
        for name in ("warmup", "b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 0 and below 1")
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be a finite number above 0, got {self.lr:g}")
        if not self.clip > 0:
            raise UserError(f"--clip must be above 0, got {self.clip:g}")
        if not 0 <= self.final_lr <= 1:
            raise UserError(f"--final-lr must be a fraction of --lr, 0 to 1, got {self.final_lr:g}")
        check_least(self, weight_decay=0)


@dataclasses.dataclass(frozen=True)
class TrainerConfig(OptimizerConfig):
    """The length, the devices and the outputs of a run."""

    steps: int | None = None
    """Total number of updates; 1000 unless --minutes is given. The learning rate's schedule depends
    on it, so a run cannot resume with another number; start a new run from the result to train
    further."""
    minutes: float | None = None
    """Train for this time instead: the learning rate follows the time that has passed since the
    first update was compiled."""
    batch_size: int = 32
    """Rows per update, over all devices."""
    accumulate: int = 1
    """Microbatches per update, whose gradients are summed; more need less memory."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """dtype in which the loss is computed; parameters and optimiser stay float32."""
    seed: int = 0
    """Seed of everything random, in 0..2**32 - 1."""
    save_every: int = 500
    """Steps between checkpoints; evaluations and the last step always save one."""
    eval_every: int = 500
    """Steps between evaluations; the run always ends with one."""
    keep: int = 2
    """Newest checkpoints to keep."""
    mesh: str | None = None
    """Devices that share the work, such as data=2,model=4: groups of devices that share the
    target's matrices (model), each with some of a batch's rows (data). By default all devices, each
    with some rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes is not None and self.steps is not None:
            raise UserError("--steps and --minutes exclude each other; pass one of them")
        check_least(self, steps=1, batch_size=1, accumulate=1, save_every=1, eval_every=1, keep=1)
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise UserError(f"--minutes must be a finite number above 0, got {self.minutes:g}")
        if self.mesh is not None:
            from dart_jax.models.sharding.mesh import MeshShape

            MeshShape.parse(self.mesh)
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}, got {self.seed}")

    @property
    def updates(self) -> int | None:
        """Total number of updates; None if only the time counts."""
        return None if self.minutes is not None else self.steps or _STEPS

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings that must not change for a run to resume exactly, by name."""
        settings = dataclasses.asdict(self) | {"steps": self.updates}
        return {name: value for name, value in settings.items() if name not in FREE}
