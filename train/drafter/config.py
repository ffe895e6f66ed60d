"""Options of `train.drafter`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least
from dart_jax.programs.processes import DistributedConfig
from train.data.config import DataConfig
from train.evaluation.config import AcceptanceConfig
from train.objective.config import Objective
from train.objective.drafter_shape import DrafterShape
from train.run.config import TrainerConfig


@dataclasses.dataclass(frozen=True)
class DrafterTraining:
    """The settings of a run."""

    target: str
    """Directory or hub repository of the target."""
    out: Path
    """Directory of the run."""
    cache: Path | None = None
    """Directory of the prepared data and the target's cached outputs, which runs may share; by
    default the run's own."""
    teacher: Literal["online", "cached"] = "online"
    """Run the target in every step, or once per row and cache its outputs on disk; then a CPU
    computes them as when it decodes, with weights as they are stored."""
    target_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """dtype of the target's weights; auto is float32 on CPU, float16 on GPUs before compute
    capability 8, otherwise bfloat16."""
    epochs: float | None = None
    """Passes over the data, instead of --steps."""
    chunk: int | None = None
    """Anchors per row processed at a time; by default chosen to keep the logits of one position
    below 256 MB and the attention scores below 1 GB per device."""
    drafter: DrafterShape = dataclasses.field(default_factory=DrafterShape)
    data: DataConfig = dataclasses.field(default_factory=lambda: DataConfig(()))
    objective: Objective = dataclasses.field(default_factory=Objective)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    acceptance: AcceptanceConfig = dataclasses.field(default_factory=AcceptanceConfig)
    processes: DistributedConfig = dataclasses.field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise UserError(f"--epochs must be a finite number above 0, got {self.epochs:g}")
        if self.epochs is not None and self.trainer.minutes is not None:
            raise UserError("--epochs and --minutes exclude each other; pass one of them")
        check_least(self, chunk=1)
