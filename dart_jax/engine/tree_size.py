"""The size of the next draft trees: as many nodes as pay, down to plain decoding where none do.

The size that is expected to emit most tokens per second is taken; CaDDTree (arXiv 2606.01813)
applies the same rule node by node. Where that is plain decoding, drafting pauses, and is tried
again after ever longer times, across texts: a trial costs little, and a long pause bounds what
trials cost together. While drafts pay, other sizes are tried now and then.

Nodes are sorted from the best on, so that a smaller tree is a prefix of a larger one, and nothing
is drafted anew when the size changes.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dart_jax.engine.acceptance import AcceptanceRates
from dart_jax.engine.costs import CostFiles, StepCosts
from dart_jax.engine.levels import Level

# Steps with trees of one size before the next decision, and of a trial: of a size whose cost is not
# known, of another size than the best, or after a pause.
BURST = 32
TRIAL = 16

# Plain steps of pauses. After the first, the drafter reads what was written meanwhile; the others
# last into other texts.
PAUSES = (64, 1024, 4096, 16384)

# Every so many bursts with drafts, one tries another size: acceptance and costs change.
_TRIAL_EVERY = 32

# Steps with drafts before plain decoding is timed, so that a single short text compiles only what
# it needs.
_BEFORE_PLAIN = 64

# Ratio of expected tokens per second from which another size replaces the present one.
_CLEARLY = 1.02


class State(NamedTuple):
    """Decisions so far for one kind of steps.

    Attributes:
      size: nodes of the present burst's trees; 0 for plain decoding.
      left: its steps that are left.
      best: nodes of the trees that promise most.
      steps: steps with drafts so far.
      bursts: bursts with drafts so far.
      pauses: pauses since drafting last paid.
    """

    size: int
    left: int
    best: int
    steps: int = 0
    bursts: int = 0
    pauses: int = 0


def next_burst(
    state: State, sizes: Sequence[int], costs: Mapping[int, float], tokens: Sequence[float]
) -> State:
    """Decides the next burst.

    Args:
      state: after a burst.
      sizes: numbers of nodes to choose from, ascending from 0.
      costs: relative seconds of a step, by size, of those that were timed.
      tokens: tokens that a step is expected to emit with trees of 0 to N nodes.
    """
    drafted = state.size > 0
    state = state._replace(bursts=state.bursts + drafted)
    best = state.best
    if best in costs and len(costs) > 1:
        estimates = on_lines(costs, sizes)
        rates = {size: tokens[size] / cost for size, cost in estimates.items()}
        promising = max(sizes[1:], key=rates.__getitem__)
        if rates[promising] > _CLEARLY * rates[best]:
            best = promising
        state = state._replace(best=best)
        if drafted and 0 in costs:
            if rates[best] < rates[0]:
                pause = PAUSES[min(state.pauses, len(PAUSES) - 1)]
                return state._replace(size=0, left=pause, pauses=state.pauses + 1)
            state = state._replace(pauses=0)
    if drafted and 0 not in costs and state.steps >= _BEFORE_PLAIN:
        return state._replace(size=0, left=TRIAL)
    turn, place = divmod(state.bursts, _TRIAL_EVERY)
    if drafted and place == _TRIAL_EVERY - 1 and not state.pauses:
        return state._replace(size=_other(sizes, best, turn), left=TRIAL)
    tried = best in costs and not state.pauses
    return state._replace(size=best, left=BURST if tried else TRIAL)


def _other(sizes: Sequence[int], best: int, turn: int) -> int:
    """Another size than the best: in turn plain decoding, and the next smaller and larger one."""
    place = sizes.index(best)
    others = [0, *sizes[max(place - 1, 1) : place], *sizes[place + 1 : place + 2]]
    return others[turn % len(others)]


def on_lines(costs: Mapping[int, float], sizes: Sequence[int]) -> dict[int, float]:
    """Returns the costs of all sizes, where they are not known on a line through the two nearest
    known ones; at least two must be known."""
    known = sorted(costs)

    def estimate(size: int) -> float:
        below = [each for each in known if each < size][-2:]
        above = [each for each in known if each > size][:2]
        first, second = (below[-1], above[0]) if below and above else (below or above)
        slope = (costs[second] - costs[first]) / (second - first)
        return max(costs[first] + slope * (size - first), 1e-9)

    return {size: costs[size] if size in costs else estimate(size) for size in sizes}


class _Kind:
    """What is known of steps with the same rows and sampling."""

    def __init__(self, costs: StepCosts, first: int):
        self.costs = costs
        self.state = State(size=first, left=BURST if first in costs.known else TRIAL, best=first)
        self.seconds, self.timed = 0.0, 0  # of the present burst's steps


class TreeSizes:
    """Chooses sizes, and learns from the steps. For any thread.

    Attributes:
      sizes: tree sizes by number of rows, each ascending from 0.
    """

    def __init__(
        self,
        sizes: Mapping[int, Sequence[int]],
        *,
        fixed: bool = False,
        first: int | None = None,
        files: CostFiles | None = None,
        program: Hashable = None,
    ):
        """Begins with the costs that are known from before.

        Args:
          sizes: see the class.
          fixed: always take the largest.
          first: the size to begin with; None for the largest.
          files: keep costs between processes.
          program: what costs depend on besides rows and sampling; its `repr` is the same in every
            process.
        """
        self.sizes = sizes
        self._fixed, self._first = fixed, first
        self._files, self._program = files, program
        self._most = max(each[-1] for each in sizes.values())
        self._kinds: dict[tuple[int, Level], _Kind] = {}
        # Sampled drafts are accepted less often than greedy ones.
        self._rates = {greedy: AcceptanceRates.none(self._most) for greedy in (True, False)}
        self._tour: list[int] = []
        self._lock = threading.Lock()

    @property
    def touring(self) -> bool:
        """Whether sizes are still to be visited."""
        return bool(self._tour)

    def tour(self, rows: int) -> None:
        """Visits all sizes before anything else, so that programs are compiled and costs known."""
        sizes = self.sizes[rows]
        if not self._fixed and len(sizes) > 1:
            self._tour = [size for size in (*sizes[1:], *reversed(sizes[1:])) for size in (0, size)]

    def choose(self, rows: int, level: Level) -> State:
        """The present burst: of the next steps."""
        with self._lock:
            kind = self._kind(rows, level)
            if self._fixed or len(self.sizes[rows]) == 1:
                return kind.state._replace(size=self.sizes[rows][-1], left=2**30)
            if kind.state.left <= 0:
                if self._tour:
                    kind.state = kind.state._replace(size=self._tour.pop(), left=TRIAL)
                else:
                    tokens = self._rates[level == "greedy"].expected().tolist()
                    kind.state = next_burst(kind.state, self.sizes[rows], kind.costs.known, tokens)
            return kind.state

    def drafts(self, rows: int, level: Level) -> bool:
        """Whether the drafter should read new texts: drafts pay, or will soon be tried."""
        state = self.choose(rows, level)
        return state.size > 0 or state.left <= PAUSES[0] < 2**30

    def learn(
        self,
        rows: int,
        level: Level,
        size: int,
        ranks: np.ndarray,
        texts: int,
        steps: int,
        seconds: float | None,
    ) -> None:
        """Adds what came of steps.

        Args:
          rows: of the program.
          level: how it sampled.
          size: of the trees.
          ranks: int [n], ranks of the accepted nodes; zeros are ignored.
          texts: steps of all texts.
          steps: of the program.
          seconds: of all steps; None if that tells nothing, as where a program was compiled.
        """
        with self._lock:
            kind = self._kind(rows, level)
            state = kind.state
            if size != state.size:
                return  # another burst has begun, or none of the texts can be drafted
            if size:
                self._rates[level == "greedy"].learn(ranks[ranks <= size], texts, steps, size)
                state = state._replace(steps=state.steps + steps)
            state = state._replace(left=state.left - steps)
            if seconds is not None:
                kind.seconds += seconds
                kind.timed += steps
            if state.left <= 0:
                if 2 * kind.timed >= TRIAL:
                    kind.costs.learn(size, kind.seconds / kind.timed)
                    if self._files is not None:
                        self._files.keep((self._program, rows, level), kind.costs.known)
                kind.seconds, kind.timed = 0.0, 0
            kind.state = state

    def _kind(self, rows: int, level: Level) -> _Kind:
        key = rows, level
        if key not in self._kinds:
            sizes = self.sizes[rows]
            known = {} if self._files is None else self._files.read((self._program, *key))
            first = self._first if self._first in sizes else sizes[-1]
            costs = StepCosts({size: cost for size, cost in known.items() if size in sizes})
            self._kinds[key] = _Kind(costs, first or sizes[-1])
        return self._kinds[key]
