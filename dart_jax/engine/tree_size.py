"""The size of the next draft trees: as many nodes as pay, down to plain decoding where none do.

The size that is expected to emit most tokens per second is taken; CaDDTree (arXiv 2606.01813)
applies the same rule node by node. Where that is plain decoding, drafting pauses, and is tried
again after ever longer times, across texts: a trial costs little, and a long pause bounds what
trials cost together. While drafts pay, other sizes are tried now and then.

Nodes are sorted from the best on, so that a smaller tree is a prefix of a larger one, and nothing
is drafted anew when the size changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import statistics
import threading
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dart_jax.engine.rows import SamplingMode
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.machine import available_cores

_logger = logging.getLogger(__name__)

# Latest samples of a size's cost that count.
_LATEST = 9

# Costs are written again if one has changed by this factor.
_CHANGED = 1.2


class StepCosts:
    """Seconds of a step by tree size, 0 for plain decoding, on a machine as busy as at the first
    burst.

    Only their ratios matter, so a burst of another size than the one before is compared with that:
    a machine that is busy, or texts that grow, slow both down.
    """

    def __init__(self, known: Mapping[int, float] | None = None):
        """Begins with costs of another process, each until it is timed here."""
        self._samples: dict[int, deque[float]] = {}
        self._last: int | None = None  # size of the last burst
        self._slowdown = 1.0  # at that burst
        for size, cost in (known or {}).items():
            self._add(size, cost)
        self._not_timed = set(self._samples)

    def learn(self, size: int, seconds: float) -> None:
        """Adds the seconds per step of a burst."""
        if size not in self._samples or self._last not in (None, size):
            if size in self._not_timed:
                self._not_timed.remove(size)
                del self._samples[size]
            self._add(size, seconds / self._slowdown)
        self._last, self._slowdown = size, seconds / self.known[size]

    @property
    def known(self) -> dict[int, float]:
        """The costs of the sizes that were timed, ascending."""
        return {size: statistics.median(all_) for size, all_ in sorted(self._samples.items())}

    def _add(self, size: int, cost: float) -> None:
        self._samples.setdefault(size, deque(maxlen=_LATEST)).append(cost)


@dataclasses.dataclass(frozen=True)
class CostFiles:
    """Files of costs, one for each program.

    Attributes:
      directory: where they are. What cannot be written there is learned again in every process.
    """

    directory: Path
    _written: dict[Path, dict[int, float]] = dataclasses.field(default_factory=dict, repr=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def read(self, program: Hashable) -> dict[int, float]:
        """Returns the costs of a program by size; none if there are none."""
        path = self._path(program)
        try:
            costs = {int(k): float(v) for k, v in json.loads(path.read_text()).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
        costs = costs if all(0 < cost < float("inf") for cost in costs.values()) else {}
        with self._lock:
            self._written[path] = costs
        return costs

    def keep(self, program: Hashable, costs: Mapping[int, float]) -> None:
        """Writes the costs of a program if they are new."""
        path = self._path(program)
        with self._lock:
            before = self._written.get(path, {})
            if not any(_differs(before.get(size), cost) for size, cost in costs.items()):
                return
            self._written[path] = {**before, **costs}
            try:
                write_atomically(path, (json.dumps(self._written[path]) + "\n").encode())
            except (OSError, UserError) as error:
                _logger.warning("the costs of draft trees are not kept: %s", error)

    def _path(self, program: Hashable) -> Path:
        device = jax.devices()[0].device_kind, available_cores(), jax.__version__
        name = hashlib.sha256(repr((program, device)).encode()).hexdigest()[:32]
        return self.directory / f"{name}.json"


def _differs(before: float | None, cost: float) -> bool:
    return before is None or not before / _CHANGED < cost < before * _CHANGED


# Part of the earlier evidence that is kept from step to step: about 50 steps count, and for ranks
# that are not verified about 200. Those are then judged by the others, and tried again.
_KEPT = 0.98
_KEPT_UNTRIED = 0.995

# A rank of which nothing is known follows the others: the r-th node is accepted in c / r of the
# steps. This belief weighs as much as so many steps; before the first one, c is 1.
_PRIOR_STEPS = 2.0


@dataclasses.dataclass(eq=False)
class AcceptanceRates:
    """Rates at which nodes were accepted lately, by rank.

    Nodes are ordered by score, so the r-th node of every tree is about as promising, whatever the
    tree's size: what was accepted of large trees tells what smaller ones would have gained.

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


# Steps with trees of one size before the next decision, and of a trial: of a size whose cost is not
# known, of another size than the best, or after a pause.
BURST = 32
TRIAL = 16

# Plain steps of pauses. After the first, the drafter reads what was written meanwhile; the others
# last into other texts.
PAUSES = (64, 1024, 4096, 16384)

# Every so many bursts with drafts, one tries another size: acceptance and costs change.
_TRIAL_EVERY = 32

# Bursts before the first of these trials, that of plain decoding, where costs come from a file.
_FIRST_TRIAL = 3

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
      bursts: bursts with drafts, counted for trials (see `_TRIAL_EVERY`).
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
    """Costs and decisions of steps with the same rows and sampling."""

    def __init__(self, costs: StepCosts, first: int):
        self.costs = costs
        self.state = State(size=first, left=TRIAL, best=first)
        if first in costs.known:
            # The costs are of another process, in which the machine may have been busy: plain
            # decoding is soon tried.
            self.state = self.state._replace(left=BURST, bursts=_TRIAL_EVERY - _FIRST_TRIAL)
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
        self._kinds: dict[tuple[int, SamplingMode], _Kind] = {}
        # Sampled drafts are accepted less often than greedy ones.
        self._rates = {greedy: AcceptanceRates.none(self._most) for greedy in (True, False)}
        self._tour: list[int] = []
        self._lock = threading.Lock()

    @property
    def touring(self) -> bool:
        """True while sizes are still to be visited."""
        return bool(self._tour)

    def tour(self, rows: int) -> None:
        """Visits all sizes before anything else, so that programs are compiled and costs known."""
        sizes = self.sizes[rows]
        if not self._fixed and len(sizes) > 1:
            self._tour = [size for size in (*sizes[1:], *reversed(sizes[1:])) for size in (0, size)]

    def choose(self, rows: int, mode: SamplingMode) -> State:
        """The present burst: of the next steps."""
        with self._lock:
            kind = self._kind(rows, mode)
            if self._fixed or len(self.sizes[rows]) == 1:
                return kind.state._replace(size=self.sizes[rows][-1], left=2**30)
            if kind.state.left <= 0:
                if self._tour:
                    kind.state = kind.state._replace(size=self._tour.pop(), left=TRIAL)
                else:
                    tokens = self._rates[mode == "greedy"].expected().tolist()
                    kind.state = next_burst(kind.state, self.sizes[rows], kind.costs.known, tokens)
            return kind.state

    def drafts(self, rows: int, mode: SamplingMode) -> bool:
        """True if the drafter should read new texts: drafts pay, or will soon be tried."""
        state = self.choose(rows, mode)
        return state.size > 0 or state.left <= PAUSES[0] < 2**30

    def learn(
        self,
        rows: int,
        mode: SamplingMode,
        size: int,
        ranks: np.ndarray,
        texts: int,
        steps: int,
        seconds: float | None,
    ) -> None:
        """Adds what came of steps.

        Args:
          rows: of the program.
          mode: how it sampled.
          size: of the trees.
          ranks: int [n], ranks of the accepted nodes; zeros are ignored.
          texts: steps of all texts.
          steps: of the program.
          seconds: of all steps; None if that tells nothing, as where a program was compiled.
        """
        with self._lock:
            kind = self._kind(rows, mode)
            state = kind.state
            if size != state.size:
                return  # another burst has begun, or none of the texts can be drafted
            if size:
                self._rates[mode == "greedy"].learn(ranks[ranks <= size], texts, steps, size)
                state = state._replace(steps=state.steps + steps)
            state = state._replace(left=state.left - steps)
            if seconds is not None:
                kind.seconds += seconds
                kind.timed += steps
            if state.left <= 0:
                if 2 * kind.timed >= TRIAL:
                    kind.costs.learn(size, kind.seconds / kind.timed)
                    if self._files is not None:
                        self._files.keep((self._program, rows, mode), kind.costs.known)
                elif not size:
                    state = state._replace(bursts=state.bursts - 1)  # the trial is repeated
                kind.seconds, kind.timed = 0.0, 0
            kind.state = state

    def _kind(self, rows: int, mode: SamplingMode) -> _Kind:
        key = rows, mode
        if key not in self._kinds:
            sizes = self.sizes[rows]
            known = {} if self._files is None else self._files.read((self._program, *key))
            first = self._first if self._first in sizes else sizes[-1]
            costs = StepCosts({size: cost for size, cost in known.items() if size in sizes})
            self._kinds[key] = _Kind(costs, first or sizes[-1])
        return self._kinds[key]
