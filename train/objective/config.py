"""Options of the objective; `loss.py` is what they are of."""

from __future__ import annotations

import dataclasses
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least


@dataclasses.dataclass(frozen=True)
class Objective:
    """The objective's options."""

    loss: Literal["kl", "tv"] = "kl"
    """Divergence: KL, or a tenth of it plus nine tenths of the total variation, which is how often
    a token that is drawn from the prediction is rejected."""
    position_weights: Literal["gamma", "path"] = "gamma"
    """Weights of positions: powers of --gamma, or how many accepted tokens depend on each, by the
    drafter's present rates of acceptance."""
    gamma: float = 0.6
    """Position t has weight gamma ** (t - 1), with --position-weights gamma."""
    anchors: int | None = None
    """Anchors per row, drawn at random every step; by default all rows."""
    thin: bool = False
    """Predict a quarter of the positions after half of these anchors, half of the positions after
    three eighths, and all after the rest. What is predicted more rarely weighs as much more, so
    that gradients stay the same on average, for less than half of the work."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise UserError(f"--gamma must be above 0 and at most 1, got {self.gamma:g}")
        check_least(self, anchors=1)
        if self.thin and (self.anchors is None or self.position_weights == "path"):
            raise UserError("--thin needs --anchors and --position-weights gamma; leave it out")
