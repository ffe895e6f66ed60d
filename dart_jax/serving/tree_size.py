"""How large the trees of a step are: as large as pays at the present load.

What a step costs is measured before the first request, for every number of rows and every size of
trees; how many tokens trees of each size are worth is learned from what was accepted lately (see
`dart_jax.decoding.adaptive`). Where drafting does not pay, steps decode plainly, without the
drafter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dart_jax.decoding.adaptive.acceptance import AcceptanceRates
from dart_jax.serving.config import Level

# Drafting must promise this much more than plain decoding, since both are only estimated.
_WORTHWHILE = 1.1

# Steps for which drafting must seem to pay before it begins again: what the drafter has missed must
# then be read.
_PATIENCE = 16

# Trees whose acceptance must be known to judge by it; before, a tree's n-th node is believed to be
# accepted in 1 / n of all steps.
_EVIDENCE = 24

# Plain steps after which what was accepted is forgotten, so that drafting is tried again where it
# may pay; each time that it does not, four times as many, up to a most.
_FORGET_AFTER, _FORGET_AFTER_MOST = 400, 25_600

# Every so many steps, some have trees of the next larger size, of which else nothing new is known.
_EVERY, _TRIED = 60, 3


class TreeSizes:
    """Chooses sizes, and learns from the steps.

    Attributes:
      sizes: tree sizes by number of rows, each ascending from 0.
    """

    def __init__(self, sizes: Mapping[int, tuple[int, ...]], fixed: bool):
        """`fixed`: whether the largest size is always taken."""
        self.sizes = sizes
        self._fixed = fixed
        self._most = most = max(each[-1] for each in sizes.values())
        self._costs: dict[tuple[int, Level], dict[int, float]] = {}
        # Sampled drafts are accepted less often than greedy ones.
        self._rates = {greedy: AcceptanceRates.none(most) for greedy in (True, False)}
        self._size = most
        self._waited = self._steps = self._plain = 0
        self._forget_after = _FORGET_AFTER

    def choose(self, rows: int, level: Level) -> int:
        """The size of the next step's trees; 0 for plain decoding."""
        sizes, costs = self.sizes[rows], self._costs.get((rows, level), {})
        if self._fixed or not costs:
            return sizes[-1]
        tokens = self._expected(level)
        gains = {size: tokens[size] / cost for size, cost in costs.items()}
        gains[0] *= _WORTHWHILE
        best = max(gains, key=gains.__getitem__)
        self._waited = self._waited + 1 if best and not self._size else 0
        if self._size or not best or self._waited > _PATIENCE:
            self._size = best
        self._steps += 1
        self._plain = 0 if self._size else self._plain + 1
        if self._size and self._steps % _EVERY < _TRIED:
            return next((size for size in sizes if size > self._size), self._size)
        return self._size

    def _expected(self, level: Level) -> np.ndarray:
        """The tokens that a step is expected to emit per row, float [N + 1], by tree size."""
        greedy = level == "greedy"
        trees = self._rates[greedy].tried[1:2].sum()
        if trees >= _EVIDENCE and self._plain >= self._forget_after:
            self._rates[greedy] = AcceptanceRates.none(self._most)
            self._forget_after = min(4 * self._forget_after, _FORGET_AFTER_MOST)
            trees = 0
        elif trees >= 1.5 * _EVIDENCE and self._size:  # it has paid for a while
            self._forget_after = _FORGET_AFTER
        known = trees >= _EVIDENCE
        return (self._rates[greedy] if known else AcceptanceRates.none(self._most)).expected()

    def learn_cost(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Sets what a step costs."""
        self._costs.setdefault((rows, level), {})[size] = seconds

    def learn_accepted(self, level: Level, size: int, ranks: np.ndarray, trees: int) -> None:
        """Adds what was accepted of trees that were drafted for a size: the nodes' ranks, int [n],
        and the number of trees."""
        ranks = ranks[ranks <= size]
        self._rates[level == "greedy"].learn(ranks, trees, 1, size)
