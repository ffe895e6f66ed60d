"""Sizes of draft trees: as many nodes as pay, down to plain decoding where none do.

Where a step takes time only for the nodes that it verifies, it decides itself how many these are,
by what is known here (`dart_jax.decoding.paying`). Elsewhere programs have trees of few sizes, and
the same rule takes one of them for a burst of steps, by how likely nodes were lately.

Drafting pauses where plain decoding is faster, and is tried again after ever longer times, across
texts: a trial costs little, and a long pause bounds what trials cost together.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dart_jax.decoding.paying import NUMBERS, Lessons, Paying, nodes_that_pay, prior_rates
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.request import SamplingMode
from dart_jax.engine.shapes import Shapes, default_tree
from dart_jax.engine.step_costs import ENOUGH, PLAIN, Known, StepCosts, path_for
from dart_jax.files import user_cache
from dart_jax.models.sharding.mesh import several_processes

# Steps until the next decision, fewest and most (half of those so far), and where something is
# tried; and of plain decoding where it is timed. Steps that decide themselves are left alone for
# longer, and not called for few: each call of a program takes as long as half a step.
BURST, _LONGEST, TRIAL, _TIMED = 32, 256, 16, 8
_STEPWISE_BURST, _FEW = 64, 16

# Plain steps of pauses. After the first, the drafter reads what was written meanwhile; the others
# last into other texts.
PAUSES = (64, 64, 64, 256, 1024, 4096, 16384)

# Steps with drafts after which costs are timed again, and where drafts give less than _LITTLE of
# plain decoding's speed; at first fewer, as a process that has just begun is slow in other ways.
_CHECK_AFTER, _CHECK_SOON, _FIRST_CHECK = 2048, 512, 96
_LITTLE = 1.15

# Steps with drafts before plain decoding is timed, so that a single short text compiles only what
# it needs.
_BEFORE_PLAIN = 64

# Parts of earlier evidence that are kept from step to step: of what became of nodes, of how likely
# they were by place, and of whether drafts pay, also over a pause.
_KEPT, _KEPT_PLACES, _KEPT_PAY, _KEPT_OVER_PAUSE = 0.999, 0.98, 0.99, 0.25

# Part of plain decoding's speed below which drafting pauses.
_CLEARLY = 0.97

# Nodes that the assumed rate of a bin weighs as much as.
_PRIOR_NODES = 5.0

# Parts of a plain step that a node costs, as long as nothing was timed.
_NODE, _NODE_ELSEWHERE = 0.12, 0.005


class State(NamedTuple):
    """A burst.

    Attributes:
      size: nodes of the trees that its program has room for; 0 for plain decoding.
      left: its steps that are left.
      paying: says which of the nodes pay, by default all.
    """

    size: int
    left: int
    paying: Paying[np.ndarray] | None = None


class _Kind:
    """Knowledge and decisions of steps with the same rows and sampling."""

    def __init__(
        self, sizes: Sequence[int], first: int, slope: float, path: Path | None, *, stepwise: bool
    ):
        self.sizes, self.stepwise, self.path = sizes, stepwise, path
        self.written = known = Known.nothing() if path is None else Known.read(path)
        self.costs = StepCosts(slope, sizes[-1], known.costs)
        self.outcomes = known.outcomes
        self.places = 0.8 / np.arange(1, sizes[-1] + 1)  # probabilities by place
        self.tokens = self.cost = 0.0  # expected ones, and what they cost: of the latest steps
        self.least = _STEPWISE_BURST if stepwise else BURST
        # Steps without drafts are plain ones, in the only program there is.
        self.only = len(sizes) == 1
        # Whether steps verify one number after another.
        self.timing = stepwise
        self.size, self.left = first, self.least if known.costs and not stepwise else TRIAL
        self.tour: list[int] = []  # sizes to visit first, the last one first
        self.drafted = self.pauses = 0
        # Steps with drafts from one time that costs are timed again to the next, and until then.
        self.check = self.interval = _FIRST_CHECK
        self.seconds, self.timed = 0.0, 0
        self.state = self.burst()

    def keep(self) -> None:
        """Writes what is known to the file, if there is one and it is new."""
        known = Known(self.costs.known, self.outcomes)
        if self.path is not None and self.written.differs(known):
            self.written = known
            known.write(self.path)

    def burst(self) -> State:
        """Returns the burst that was decided."""
        if not self.size:
            return State(0, self.left)
        costs, numbers = np.ones(self.size + 1), np.full(NUMBERS, -1, np.int32)
        if self.stepwise:
            costs = self.usual_rate() * self.costs.of(np.arange(self.size + 1))
            if self.timing:
                every = [0, *(2**n for n in range(self.size.bit_length() - 1)), self.size]
                numbers = np.resize(np.array(every[::-1], np.int32), NUMBERS)
        paying = Paying(self.rates(), costs.astype(np.float32), numbers)
        return State(self.size, self.left, paying)

    @property
    def over(self) -> bool:
        """True if the next burst is to be decided."""
        steady = self.size > 0 and not (self.timing or self.tour or self.pauses)
        return self.left < (_FEW if self.stepwise and steady else 1)

    def rates(self) -> np.ndarray:
        """Rates of acceptance by bin, see `Paying`."""
        tried, accepted = self.outcomes.T
        believed = _PRIOR_NODES * prior_rates()
        return ((accepted + believed) / (tried + _PRIOR_NODES)).astype(np.float32)

    def decide(self) -> None:
        """Decides the next burst."""
        self._decide()
        self.state = self.burst()

    def _decide(self) -> None:
        drafted, trying, plain = self.size > 0, self.pauses > 0, self.costs.plain
        self.left, self.timing = min(max(self.least, self.drafted // 2), _LONGEST), False
        if drafted and self.check <= 0 and not self.only:
            little = self.tokens < _LITTLE * self.cost / (plain or 1.0)
            self.interval = min(2 * self.interval, _CHECK_SOON if little else _CHECK_AFTER)
            self.check = self.interval
            # First all numbers of nodes: what they cost depends on what else the machine does.
            self.tour = [0, self.best()] if self.stepwise else [0]
        if self.only:
            self.tour = []
        elif self.tour:
            self.size = self.tour.pop()
            self.left = TRIAL if self.size else _TIMED
            self.timing = self.stepwise and self.size > 0
        elif not self.costs.known:
            self.size, self.left, self.timing = self.best(), TRIAL, self.stepwise
        elif not drafted:
            self.check = self.interval
            self.size, self.left = self.best(), TRIAL if trying or plain is None else self.least
        elif plain is None:
            early = self.drafted < _BEFORE_PLAIN
            self.size, self.left = (self.best(), TRIAL) if early else (0, _TIMED)
        elif self.cost and self.tokens / self.cost < _CLEARLY / plain:
            self.size, self.left = 0, PAUSES[min(self.pauses, len(PAUSES) - 1)]
            self.pauses += 1
            self.tokens *= _KEPT_OVER_PAUSE
            self.cost *= _KEPT_OVER_PAUSE
        else:
            self.pauses = 0
            self.size = self.best()

    def best(self) -> int:
        """Returns the size of the program that promises most."""
        sizes = np.array(self.sizes[1:])
        numbers = np.arange(1, sizes[-1] + 1)
        each = np.searchsorted(sizes, numbers)
        costs = self.costs.of(numbers if self.stepwise else sizes[each])
        pays = nodes_that_pay(self.places, self.usual_rate() * np.concatenate([[np.inf], costs]))
        return int(sizes[each[pays - 1]])

    def usual_rate(self) -> float:
        """Returns the tokens that are expected for a unit of cost: of the latest steps with drafts,
        or of plain decoding if that is more."""
        plain = self.costs.of(np.zeros(1, int))[0] if self.only else self.costs.plain or 1.0
        plain = 1 / plain
        return max(self.tokens / self.cost if self.cost else 0.0, plain)

    def learn(
        self,
        steps: int,
        lessons: Lessons[np.ndarray] | None,
        seconds: float | None,
        times: np.ndarray | None,
    ) -> None:
        """Adds what came of steps; see `TreeSizes.learn`."""
        self.left -= steps
        nodes, kind = np.full(1, self.size or PLAIN), self.size
        if self.stepwise:
            if times is not None and len(times) > 1:
                spent = 1e-6 * np.diff(times[:, 0]).astype(float)  # modulo 2 ** 32
                verified = times[:, 1].astype(int) if self.size else np.full(len(times), PLAIN)
                spent = np.maximum(spent, 1e-6)
                self.costs.learn(kind, verified[1:], spent, anew=self.timing)
                nodes = verified
        elif seconds is not None:
            self.seconds += seconds
            self.timed += steps
        if self.left <= 0 and self.timed >= _TIMED:
            self.costs.learn(kind, nodes, np.full(1, self.seconds / self.timed))
        if self.left <= 0:
            self.seconds, self.timed = 0.0, 0
        if self.size and lessons is not None and lessons.expected[0] > 0:
            self._judge(steps, lessons, nodes)

    def _judge(self, steps: int, lessons: Lessons[np.ndarray], nodes: np.ndarray) -> None:
        """Learns how likely nodes are, and what their tokens cost."""
        self.drafted += steps
        self.check -= steps
        self.outcomes = _KEPT**steps * self.outcomes + lessons.outcomes
        if self.timing:
            return
        new = lessons.expected[1:] / lessons.expected[0]
        last, share = len(new) - 1, 1 - _KEPT_PLACES**steps
        before = self.places[last]
        self.places[: last + 1] += share * (new - self.places[: last + 1])
        self.places[last + 1 :] *= self.places[last] / max(before, 1e-9)
        kept = _KEPT_PAY**steps
        self.tokens = kept * self.tokens + steps * (1 + float(new.sum()))
        self.cost = kept * self.cost + steps * float(self.costs.of(nodes).mean())


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
        stepwise: bool = False,
        first: int | None = None,
        directory: Path | None = None,
        program: Hashable = None,
    ):
        """Begins with what is known from before.

        Args:
          sizes: see the class.
          fixed: always take the largest, and verify all of its nodes.
          stepwise: steps of one row take time only for the nodes that they verify.
          first: nodes of all rows to begin with, by default the largest size.
          directory: where knowledge is kept between processes, if anywhere.
          program: what costs depend on besides rows and sampling, see `path_for`.
        """
        self.sizes = sizes
        self._fixed, self._stepwise, self._first = fixed, stepwise, first
        self._directory, self._program = directory, program
        self._kinds: dict[tuple[int, SamplingMode], _Kind] = {}
        self._lock = threading.Lock()

    @property
    def touring(self) -> bool:
        """True while sizes are still to be visited."""
        with self._lock:
            return any(kind.tour for kind in self._kinds.values())

    def tour(self, rows: int, mode: SamplingMode) -> None:
        """Visits all sizes before anything else, so that programs are compiled and costs known."""
        if self._is_fixed(rows):
            return
        with self._lock:
            for other in self._kinds.values():
                other.tour = []  # of a visit that was interrupted
            kind, every = self._kind(rows, mode), [*self.sizes[rows][1:]]
            if not every:
                return
            # Of plain decoding, too, whose first one is not timed: it compiles.
            visits = max(3, -(-(ENOUGH + 1) // len(every)))
            every = (visits - 1) * every + every[::-1]
            kind.tour = [x for size in every for x in (0, size)]
            kind.left = 0

    def choose(self, rows: int, mode: SamplingMode) -> State:
        """Returns the present burst: of the next steps."""
        with self._lock:
            if self._is_fixed(rows):
                return State(self.sizes[rows][-1], 2**30)
            kind = self._kind(rows, mode)
            if kind.over:
                kind.decide()
            return kind.state._replace(left=kind.left)

    def drafts(self, rows: int, mode: SamplingMode) -> bool:
        """True if the drafter should read new texts: drafts pay, or will soon be tried."""
        state = self.choose(rows, mode)
        return state.size > 0 or state.left <= PAUSES[0]

    def learn(
        self,
        rows: int,
        mode: SamplingMode,
        size: int,
        steps: int,
        lessons: Lessons[np.ndarray] | None,
        seconds: float | None,
        times: np.ndarray | None = None,
    ) -> None:
        """Adds what came of steps.

        Args:
          rows: of the program.
          mode: how it sampled.
          size: of the trees.
          steps: of the program.
          lessons: what became of the trees, of all rows together.
          seconds: of all steps, or None if that tells nothing, as where a program was compiled.
          times: uint32 [steps, 2], when each step was verified, in microseconds, and how many nodes
            it had. None if that is not known, or tells nothing.
        """
        if self._is_fixed(rows):
            return
        with self._lock:
            kind = self._kind(rows, mode)
            if size != kind.size:
                return  # another burst has begun, or none of the texts can be drafted
            kind.learn(steps, lessons, seconds, times)
            if kind.over:
                kind.keep()

    def _is_fixed(self, rows: int) -> bool:
        return self._fixed or self.sizes[rows] == (0,)

    def _kind(self, rows: int, mode: SamplingMode) -> _Kind:
        key = rows, mode
        if key not in self._kinds:
            sizes = self.sizes[rows]
            path = None
            if self._directory is not None:
                path = path_for(self._directory, (self._program, *key))
            stepwise = self._stepwise and rows == 1
            first = sizes[min(1, len(sizes) - 1)] if stepwise else sizes[-1]
            if self._first is not None and not stepwise:
                enough = (size for size in sizes[1:] if size * rows >= self._first)
                first = next(enough, sizes[-1])
            node = _NODE if jax.default_backend() == "cpu" else _NODE_ELSEWHERE
            slope = min(node * rows, 1.0)
            self._kinds[key] = _Kind(sizes, first, slope, path, stepwise=stepwise)
        return self._kinds[key]


def learned_sizes(
    config: DecodeConfig,
    search: TreeSearch | None,
    shapes: Shapes,
    learned: dict[Hashable, TreeSizes],
) -> TreeSizes:
    """Returns what chooses the sizes of trees (see `ModelRunner`): what was `learned` with the same
    programs of a model, to which it is added."""
    if shapes.fixed:
        return TreeSizes(shapes.sizes, fixed=True)
    length = shapes.max_length if shapes.bounded else None
    program = config, jax.tree.structure(search), shapes.slots, length, shapes.steps
    key = program, tuple(shapes.sizes.items())
    if key not in learned:
        # Several processes must know the same.
        alone = not several_processes(config.execution.devices.mesh)
        on_cpu = jax.default_backend() == "cpu"
        new = TreeSizes(
            shapes.sizes,
            stepwise=shapes.stepwise,
            first=default_tree(config.drafter)[0] if on_cpu else None,
            directory=user_cache() / "tree_costs" if alone else None,
            program=program,
        )
        learned.setdefault(key, new)
    return learned[key]
