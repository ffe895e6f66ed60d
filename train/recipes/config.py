"""Options of the recipes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from dart_jax.errors import UserError
from train.objective.drafter_shape import DrafterShape
from train.run.config import TrainerConfig


@dataclasses.dataclass(frozen=True)
class SmolLM2Config:
    """Place, time and data of the training."""

    minutes: float
    """Time for answers and training together. What comes on top: compiling the training, counting
    n-grams, a block drafter's first weights, and on a CPU the target's outputs for the answers,
    about as long as the answers."""
    work: Path = Path("build/smollm2")
    """Directory where every stage writes its result."""
    export: Path | None = None
    """Directory to write the drafters, in bfloat16, and the n-gram model to."""
    target: str = "smollm2"
    """Directory, hub repository or name of the target."""
    data: tuple[str, ...] = ()
    """Chats and instructions whose questions are answered too, as for `regenerate`, without
    their system prompts and tools; each of them, and ShareGPT, as often as the others."""
    no_sharegpt: bool = False
    """Do not fetch ShareGPT, 27 MB, and answer its questions."""
    leave_out: tuple[str, ...] = ()
    """Files of benchmarks: no question of their first 500 records is answered."""
    draft_vocab: int = 8192
    """Tokens that the drafters can draft, the most frequent ones of the answers."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise UserError(f"--minutes must be a finite number above 0, got {self.minutes:g}")
        if self.no_sharegpt and not self.data:
            raise UserError("no questions: pass --data, or leave --no-sharegpt out")
        if self.export is not None and self.export.resolve() == self.work.resolve():
            raise UserError("--export and --work must be different directories")
        # What the last stages would refuse after hours.
        TrainerConfig(seed=self.seed)
        DrafterShape(draft_vocab=self.draft_vocab)


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """The directories and the seed."""

    work: Path = Path("build/demo")
    """Directory where every stage writes its result."""
    export: Path | None = None
    """Directory to write the packaged model to, in bfloat16."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        TrainerConfig(seed=self.seed)  # raises if it is out of range
