"""How large the trees of a step are: as large as pays at the present load.

What a step costs is measured before the first request, for every number of rows and every size of
trees; how many tokens trees of each size are worth is learned from what was accepted lately (see
`dart_jax.decoding.adaptive`). Where drafting does not pay, steps decode plainly and the drafter
only reads what was written; now and then some steps draft, to see whether it would pay again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dart_jax.decoding.adaptive.acceptance import AcceptanceRates
from dart_jax.serving.config import Level

# A size is left only for one that promises this much more.
_WORTHWHILE = 1.03

# Plain steps after which drafting is tried again, and for how many.
_PLAIN_STEPS = 400
_TRIED_STEPS = 8


class TreeSizes:
    """Chooses sizes, and learns from the steps.

    Attributes:
      sizes: tree sizes by number of rows, each ascending from 0.
    """

    def __init__(self, sizes: Mapping[int, tuple[int, ...]], fixed: bool):
        """`fixed`: whether the largest size is always taken."""
        self.sizes = sizes
        self._fixed = fixed
        most = max(each[-1] for each in sizes.values())
        self._costs: dict[tuple[int, Level], dict[int, float]] = {}
        # Sampled drafts are accepted less often than greedy ones.
        self._rates = {greedy: AcceptanceRates.none(most) for greedy in (True, False)}
        self._size = most
        self._plain = 0

    def choose(self, rows: int, level: Level) -> int:
        """The size of the next step's trees; 0 for plain decoding."""
        sizes, costs = self.sizes[rows], self._costs.get((rows, level), {})
        if self._fixed or not costs:
            return sizes[-1]
        tokens = self._rates[level == "greedy"].expected()
        gains = {size: tokens[size] / cost for size, cost in costs.items()}
        best = max(gains, key=gains.__getitem__)
        if self._size not in gains or gains[best] > _WORTHWHILE * gains[self._size]:
            self._size = best
        self._plain = 0 if self._size else self._plain + 1
        if self._plain <= _PLAIN_STEPS or len(sizes) == 1:
            return self._size
        if self._plain == _PLAIN_STEPS + _TRIED_STEPS:
            self._plain = 0
        return sizes[1]

    def learn_cost(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Sets what a step costs."""
        self._costs.setdefault((rows, level), {})[size] = seconds

    def learn_accepted(self, level: Level, size: int, ranks: np.ndarray, trees: int) -> None:
        """Adds what was accepted of some trees: ranks int [n], as `AcceptanceRates.learn`."""
        self._rates[level == "greedy"].learn(ranks, trees, 1, size)
