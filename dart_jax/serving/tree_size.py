"""How large the trees of a step are: as large as pays at the present load.

A step's time is known for every number of rows and every size of trees, from the warm-up and from
the steps since; how many tokens trees of each size are worth, from what was accepted lately (see
`dart_jax.decoding.adaptive`). Where drafting does not pay, steps decode plainly and the drafter
only reads what was written; now and then some steps draft, to see whether it would pay again.
"""

from __future__ import annotations

import numpy as np

from dart_jax.decoding.adaptive.acceptance import AcceptanceRates
from dart_jax.decoding.adaptive.costs import StepCosts
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

    def __init__(self, sizes: dict[int, tuple[int, ...]], fixed: bool):
        """`fixed`: whether the largest size is always taken."""
        self.sizes = sizes
        self._fixed = fixed
        self._most = max((each[-1] for each in sizes.values()), default=0)
        self._costs: dict[tuple[int, Level], StepCosts] = {}
        # Sampled drafts are accepted less often than greedy ones.
        self._rates = {greedy: AcceptanceRates.none(self._most) for greedy in (True, False)}
        self._size = self._most
        self._plain = 0

    def choose(self, rows: int, level: Level) -> int:
        """The size of the next step's trees; 0 for plain decoding."""
        sizes = self.sizes[rows]
        if self._fixed or len(sizes) == 1:
            return sizes[-1]
        costs = self._costs.get((rows, level))
        if costs is None or len(costs.known) < len(sizes):
            return self._unknown(sizes, costs)
        known, tokens = costs.known, self._rates[level == "greedy"].expected()
        gains = {size: tokens[size] / known[size] for size in sizes}
        best = max(gains, key=gains.__getitem__)
        now = self._size if self._size in gains else best
        if gains[best] > _WORTHWHILE * gains[now]:
            now = best
        self._size = now
        self._plain = 0 if now else self._plain + 1
        if self._plain > _PLAIN_STEPS:
            if self._plain > _PLAIN_STEPS + _TRIED_STEPS:
                self._plain = 0
            return sizes[1]
        return now

    def _unknown(self, sizes: tuple[int, ...], costs: StepCosts | None) -> int:
        """A size whose cost is not known well enough."""
        known = {} if costs is None else costs.known
        return next(size for size in reversed(sizes) if size not in known)

    def learn_cost(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Adds the time of a step."""
        self._costs.setdefault((rows, level), StepCosts()).learn(size, seconds)

    def learn_accepted(self, level: Level, size: int, ranks: np.ndarray, trees: int) -> None:
        """Adds what was accepted of some trees: ranks int [n], as `AcceptanceRates.learn`."""
        self._rates[level == "greedy"].learn(ranks, trees, 1, size)
