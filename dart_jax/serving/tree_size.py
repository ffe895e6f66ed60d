"""How large the trees of a step are: as large as pays at the present load.

What steps cost is measured before the first request and corrected while requests are served (see
`StepCosts`); how many tokens trees of each size are worth is learned from what was accepted lately
(see `dart_jax.decoding.adaptive`), and from how many texts of a step have a tree at all: those that
have just begun do not. Where drafting does not pay, steps decode plainly, without the drafter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dart_jax.decoding.adaptive.acceptance import AcceptanceRates
from dart_jax.serving.config import Level
from dart_jax.serving.step_costs import StepCosts

# Drafting must promise this much more than plain decoding: both are only estimated, and prompts
# take longer to read with the drafter.
_WORTHWHILE = 1.2

# Part of the earlier evidence of how many texts have a tree that is kept from step to step.
_KEPT = 0.98

# Trees that make acceptance forget as much as a step of a single call does: some hundred trees
# count, of several texts, since those that follow are others.
_TREES = 8

# Plain steps follow drafted ones, or these begin again, when not changing has cost as much time as
# so many steps, all told: what is expected differs from text to text, and to begin again takes
# time, since what the drafter has missed must be read. One step counts at most as much, so that a
# short pause of the load changes nothing.
_PATIENCE, _LOSS_OF_A_STEP = 4.0, 0.25

# Trees whose acceptance must be known to judge by it; before, a tree's n-th node is believed to be
# accepted in 1 / n of all steps.
_EVIDENCE = 24

# Where drafted steps seem worth less than so many times plain ones, and none of these were observed
# lately, some are taken after so many drafted ones.
_DOUBTFUL = 1.4
_TRIAL, _TRIAL_AFTER = 24, 100

# Steps after which what is known of the other kind, drafted or plain, is forgotten, so that it is
# tried again; each time that it is not better, four times as many, up to a most. It is better if it
# has gone on for a while.
_FORGET_AFTER, _FORGET_AFTER_MOST = 2_000, 32_000
_SETTLED_AFTER = 400

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
        self._costs = StepCosts()
        # Sampled drafts are accepted less often than greedy ones.
        self._rates = {greedy: AcceptanceRates.none(most) for greedy in (True, False)}
        self._tokens: dict[bool, list[float]] = {}  # expected, until more is learned
        self._share = 1.0  # of the texts of drafted steps, those with a tree
        self._size = most
        self._lost = 0.0  # steps' worth of time, by not changing whether to draft
        self._steps = 0
        self._trial = self._since_trial = 0  # plain steps still to take; steps since the last ones
        self._same = 0  # steps since it was last changed whether to draft
        self._settled = True  # whether drafting paid when it was last clear
        self._forget_after = _FORGET_AFTER

    def choose(self, rows: int, level: Level) -> int:
        """The size of the next step's trees; 0 for plain decoding."""
        sizes, costs = self.sizes[rows], self._costs.of(rows, level)
        if self._fixed or not costs:
            return sizes[-1]
        if self._trial:
            self._trial -= 1
            return 0
        self._forget(level)
        tokens = self._expected(level)
        share = self._share
        gains = {size: (1 + share * (tokens[size] - 1)) / cost for size, cost in costs.items()}
        gains[0] *= _WORTHWHILE
        drafted = max(sizes[1:], key=gains.__getitem__, default=0)
        now, other = (drafted, 0) if self._size else (0, drafted)
        loss = min(gains[other] / gains[now] - 1, _LOSS_OF_A_STEP)
        self._lost = max(self._lost + loss, 0.0)
        self._same += 1
        if self._lost > _PATIENCE:
            now, self._lost, self._same = other, 0.0, 0
        self._size = now
        self._steps += 1
        self._since_trial += 1
        if not self._size:
            return 0
        if (
            min(self._same, self._since_trial) > _TRIAL_AFTER
            and gains[drafted] < _DOUBTFUL * gains[0]
            and not self._costs.is_observed(rows, level, 0)
        ):
            self._trial, self._since_trial = _TRIAL, 0
            return 0
        if self._steps % _EVERY < _TRIED:
            return next((size for size in sizes if size > self._size), self._size)
        return self._size

    def _forget(self, level: Level) -> None:
        """Forgets what may no longer be so, of the kind of steps that have not run for a while."""
        drafting = self._size > 0
        if self._same == _SETTLED_AFTER and drafting != self._settled:
            self._settled, self._forget_after = drafting, _FORGET_AFTER
        if self._same and self._same % self._forget_after == 0:
            self._costs.forget(drafted=not drafting)
            if not drafting:
                self._rates[level == "greedy"] = AcceptanceRates.none(self._most)
                self._tokens.pop(level == "greedy", None)
            self._forget_after = min(4 * self._forget_after, _FORGET_AFTER_MOST)

    def _known(self, level: Level) -> bool:
        """Whether enough trees were verified to judge by."""
        return self._rates[level == "greedy"].tried[1:2].sum() >= _EVIDENCE

    def _expected(self, level: Level) -> list[float]:
        """The tokens that a text with a tree is expected to get from a step, [N + 1], by size."""
        greedy = level == "greedy"
        if greedy not in self._tokens:
            known = self._known(level)
            rates = self._rates[greedy] if known else AcceptanceRates.none(self._most)
            self._tokens[greedy] = rates.expected().tolist()
        return self._tokens[greedy]

    def learn_cost(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Sets what a step costs if nothing else runs."""
        self._costs.measure(rows, level, size, seconds)

    def learn_step(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Adds what a step took, with all that was done around it."""
        self._costs.observe(rows, level, size, seconds)

    def learn_accepted(
        self, level: Level, size: int, ranks: np.ndarray, trees: int, texts: int
    ) -> None:
        """Adds what was accepted in a drafted step.

        Args:
          level: how it sampled.
          size: what the trees were drafted for.
          ranks: int [n], ranks of the accepted nodes; zeros are ignored.
          trees: how many were verified.
          texts: how many took part.
        """
        self._share = _KEPT * self._share + (1 - _KEPT) * trees / texts
        if trees:
            rates = self._rates[level == "greedy"]
            rates.learn(ranks[ranks <= size], trees, trees / _TREES, size)
            self._tokens.pop(level == "greedy", None)
