"""How often the nodes of draft trees are accepted, by rank.

Nodes are ordered by score, so the r-th node of every tree is about as promising, whatever the
tree's size: what was accepted of large trees tells what smaller ones would have gained.
"""

from __future__ import annotations

import dataclasses

import numpy as np

# Part of the earlier evidence that is kept from step to step: about 50 steps count, and for ranks
# that are not verified about 200. Those are then judged by the others, and tried again.
_KEPT = 0.98
_KEPT_UNTRIED = 0.995

# A rank of which nothing is known follows the others: the r-th node is accepted in c / r of the
# steps. This belief weighs as much as so many steps; before the first one, c is 1.
_PRIOR_STEPS = 2.0


@dataclasses.dataclass(eq=False)
class AcceptanceRates:
    """What was accepted lately.

    Attributes:
      accepted: float [N + 1], accepted nodes of each rank; the root's entry is unused.
      tried: float [N + 1], verified nodes of each rank.
    """

    accepted: np.ndarray
    tried: np.ndarray

    @classmethod
    def none(cls, nodes: int) -> AcceptanceRates:
        """Before the first step, for trees of up to N nodes."""
        return cls(np.zeros(nodes + 1), np.zeros(nodes + 1))

    def learn(self, ranks: np.ndarray, trees: int, steps: float, nodes: int) -> None:
        """Learns from a burst.

        Args:
          ranks: int [n], ranks of all accepted nodes; zeros are ignored.
          trees: number of trees that were verified, of all rows.
          steps: steps of the burst.
          nodes: size of the trees.
        """
        counts = np.bincount(ranks[ranks > 0], minlength=len(self.accepted)).astype(float)
        verified = np.arange(len(self.tried)) <= nodes
        kept = np.where(verified, _KEPT, _KEPT_UNTRIED) ** steps
        self.accepted = kept * self.accepted + counts
        self.tried = kept * self.tried + np.where(verified, trees, 0)
        self.tried[0] = 0  # the root's

    def expected(self) -> np.ndarray:
        """The tokens that a step is expected to emit per row, with trees of 0 to N nodes: float
        [N + 1], from 1 on."""
        rank = np.maximum(np.arange(len(self.tried)), 1)
        scale = (self.accepted.sum() + _PRIOR_STEPS) / ((self.tried / rank).sum() + _PRIOR_STEPS)
        believed = np.minimum(scale / rank, 1) * _PRIOR_STEPS
        rates = (self.accepted + believed) / (self.tried + _PRIOR_STEPS)
        rates[0] = 1
        return np.cumsum(rates)
