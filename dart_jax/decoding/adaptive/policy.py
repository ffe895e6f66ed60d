"""Decides the size of the next trees, and when not to draft at all.

The size that is expected to emit most tokens per second is taken; CaDDTree (arXiv 2606.01813)
applies the same rule node by node. Where that is plain decoding, drafting pauses, and is tried
again after ever longer times, across texts: a trial costs little, and a long pause bounds what
trials cost together. Sizes that were never run are tried once they promise to be the best;
while drafts pay, the next smaller and the next larger size are tried now and then.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dart_jax.decoding.adaptive.acceptance import AcceptanceRates
from dart_jax.decoding.adaptive.costs import ENOUGH, StepCosts

# Steps of a burst with drafts, and of a trial: of a size whose cost is not known yet, or after a
# pause. Each burst has a cost of its own, which even the trial's steps must outweigh.
BURST = 32
TRIAL = 16

# Plain steps of a pause after which the same text is drafted again, and of longer ones, which last
# for the rest of a text and into the next ones.
PAUSE = 64
_RESTS = (1024, 4096, 16384)

# Every so many bursts with drafts, one tries another size: acceptance and costs change.
_TRIAL_EVERY = 32

# The longest burst that ends before a text does.
MOST_STEPS = max(BURST, PAUSE)

# Steps with drafts before anything else is tried, so that a single short text compiles only what it
# needs.
_BEFORE_TRIALS = 64

# How much faster another size must promise to be.
_CLEARLY = 1.02


class Burst(NamedTuple):
    """Steps to run.

    Attributes:
      size: nodes of the trees; 0 for plain decoding.
      steps: how many; None for the rest of the text.
    """

    size: int
    steps: int | None


class Decisions(Protocol):
    """What a `Switch` asks."""

    def begin(self) -> Burst:
        """The first burst of a text."""
        ...

    def next(self) -> Burst:
        """The next burst of a text; plain decoding is followed by a draft."""
        ...

    def learn(
        self, size: int, ranks: np.ndarray, trees: int, steps: int, seconds: float | None
    ) -> None:
        """Is told what came of a burst, or of what a text's end has left of it.

        Args:
          size: of its trees.
          ranks: int [n], ranks of the accepted nodes; zeros are ignored.
          trees: trees verified, of all rows.
          steps: its steps.
          seconds: of all its steps; None if they tell nothing, such as where programs were
            compiled.
        """
        ...


@dataclasses.dataclass(eq=False)
class Policy(Decisions):
    """The policy for one kind of generations, which each of them continues.

    Attributes:
      sizes: numbers of nodes, ascending from 0.
      first: the size to begin with.
      costs: what steps cost.
      rates: how often nodes were accepted.
    """

    sizes: Sequence[int]
    first: int
    costs: StepCosts = dataclasses.field(default_factory=StepCosts)
    rates: AcceptanceRates = dataclasses.field(init=False)
    _size: int = dataclasses.field(init=False)
    _steps: int = 0  # with drafts
    _bursts: int = 0  # likewise
    _wait: int = 0  # plain steps before the next draft
    _pauses: int = 0  # since drafting last paid
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.rates = AcceptanceRates.none(max(self.sizes))
        self._size = self.first

    def begin(self) -> Burst:
        """The first burst of a text: a draft, or plain decoding to its end."""
        with self._lock:
            return Burst(0, None) if self._wait > PAUSE else self._draft()

    def next(self) -> Burst:
        """The next burst of a text; see `Decisions`."""
        with self._lock:
            if self._wait > PAUSE:
                return Burst(0, None)
            return Burst(0, self._wait) if self._wait else self._draft()

    def learn(
        self, size: int, ranks: np.ndarray, trees: int, steps: int, seconds: float | None
    ) -> None:
        """Learns from a burst, and decides what comes next; see `Decisions`."""
        if not steps:
            return
        with self._lock:
            if seconds is not None:
                self.costs.learn(size, seconds / steps)
            if size:
                self._steps += steps
                self.rates.learn(ranks, trees, steps, size)
                self._decide()
            else:
                self._wait = max(self._wait - steps, 0)

    def decide(self) -> None:
        """Decides what comes next by all that is known, as if drafts had not been tried before."""
        with self._lock:
            self._wait = self._pauses = 0
            self._decide()

    def _draft(self) -> Burst:
        """A burst with drafts, short if what it costs is to be found out."""
        self._wait = 0
        self._bursts += 1
        turn, trial = divmod(self._bursts, _TRIAL_EVERY)
        if trial == 0 and not self._pauses:
            return Burst(self._neighbour(larger=turn % 2 == 0), TRIAL)
        tried = self._size in self.costs.known and not self._pauses
        return Burst(self._size, BURST if tried else TRIAL)

    def _neighbour(self, larger: bool) -> int:
        """The next larger or smaller size with drafts; the only other way where there is none."""
        drafts = self.sizes[1:]
        place = drafts.index(self._size)
        beside = [*drafts[max(place - 1, 0) : place], *drafts[place + 1 : place + 2]]
        return beside[-1 if larger else 0] if beside else self._size

    def _decide(self) -> None:
        """Sets the size of the next draft, and how long to wait for it."""
        known = self.costs.known
        if self._size not in known:
            return
        if 0 not in known:
            if self._steps >= _BEFORE_TRIALS:
                self._wait = PAUSE
            return
        costs, tokens = self.costs.expected(self.sizes), self.rates.expected()
        rate = {size: tokens[size] / costs[size] for size in self.sizes}
        best = max(self.sizes[1:], key=rate.__getitem__)
        if rate[best] > _CLEARLY * rate[self._size]:
            self._size = best
        if rate[self._size] >= rate[0]:
            self._pauses = 0
        else:
            self._wait = (PAUSE, *_RESTS)[min(self._pauses, len(_RESTS))]
            self._pauses += 1


class Tour(Decisions):
    """Visits every size often enough for its cost to be known, so that nothing is compiled or tried
    in what follows. Then it decodes a text without drafts but for the first step, and one without
    any."""

    def __init__(self, policy: Policy):
        """Forgets what the policy knew of costs."""
        policy.costs = StepCosts()
        self._policy = policy
        self._timed = Counter(dict.fromkeys(policy.sizes, 0))
        self._bursts = 0
        self._last = 0
        self._texts = 2  # that follow

    @property
    def done(self) -> bool:
        """Whether all has been visited."""
        return not self._texts

    @property
    def _timed_all(self) -> bool:
        """Whether the cost of every size is known; or cannot be, because texts are too short."""
        enough = min(self._timed.values()) >= ENOUGH
        return enough or self._bursts > 10 * ENOUGH * len(self._timed)

    def begin(self) -> Burst:
        """A draft, of the size that was timed least; in the end plain decoding."""
        if not self._timed_all:
            return self._draft()
        self._texts -= 1
        return Burst(self._policy.sizes[1], 1) if self._texts else Burst(0, None)

    def next(self) -> Burst:
        """The size that was timed least; in the end plain decoding."""
        if self._timed_all:
            return Burst(0, None)
        if self._last == 0 or min(self._timed.values()) < self._timed[0]:
            return self._draft()
        self._last = 0
        return Burst(0, PAUSE)

    def _draft(self) -> Burst:
        self._last = min(self._policy.sizes[1:], key=self._timed.__getitem__)
        return Burst(self._last, TRIAL)

    def learn(
        self, size: int, ranks: np.ndarray, trees: int, steps: int, seconds: float | None
    ) -> None:
        """Notes what was accepted and, unless the text ended soon, the cost."""
        self._bursts += 1
        if size:
            self._policy.rates.learn(ranks, trees, steps, size)
        if seconds is not None and steps > TRIAL // 2:
            self._timed[size] += 1
            self._policy.costs.learn(size, seconds / steps)
