"""Costs of decode steps by the nodes that they verify, which are kept between processes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dart_jax.decoding.paying import BINS
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.machine import available_cores

_logger = logging.getLogger(__name__)

# Plain decoding among numbers of nodes: a step of 0 nodes may still draft.
PLAIN = -1

# Latest bursts of plain decoding whose times count, and the fewest that do.
_LATEST, ENOUGH = 15, 5

# Steps that a cost of another process counts as, and what is assumed of 0 and of 8 nodes; steps
# that a bend of the curve counts as; and the part of earlier times that is kept from step to step.
_BEFORE, _ASSUMED, _STIFF, _KEPT = 8.0, 1.0, 30.0, 0.9995

# A time counts as at most so many times what was expected: the machine did something else.
_MOST = 4.0

# Knowledge is written again if a cost, or the number of nodes that were tried, has changed by this
# factor.
_CHANGED = 1.5


class StepCosts:
    """Relative times of steps by their nodes, on a machine as busy as at the first burst.

    Only ratios matter, so each step is compared with the others of its burst, and a burst of
    another kind with the burst before: a machine that is busy, or texts that grow, slow all down.
    Costs lie on a curve that bends no more than many steps say: the first rows of a product are
    nearly free where memory is slow, others are not. Plain decoding's cost is kept separately.
    """

    def __init__(self, slope: float, known: Mapping[int, float] | None = None):
        """Begins with costs of another process, which weigh little, and plain decoding's until it
        was timed often enough.

        Args:
          slope: the part of a plain step that a node costs, and a pass of the drafter, as long as
            nothing was timed.
          known: these costs.
        """
        self._slope = slope
        self._sums: dict[int, np.ndarray] = {}  # of costs that were timed, and how many
        self._plain: deque[float] = deque(maxlen=_LATEST)
        self._last: Hashable = None  # kind of the last burst
        self._slowdown = 1.0  # at that burst
        self._before = (known or {}).get(PLAIN)
        for nodes, cost in (known or {}).items():
            if nodes != PLAIN:
                self._add(nodes, cost, _BEFORE)

    def learn(self, kind: Hashable, nodes: np.ndarray, seconds: np.ndarray) -> None:
        """Adds the times of a burst's steps.

        Args:
          kind: of the burst.
          nodes: int [n], verified by each step, or `PLAIN`.
          seconds: float [n].
        """
        switched = self._last not in (None, kind)
        slowdown = self._slowdown if switched else self._ratio(nodes, seconds)
        for sums in self._sums.values():
            sums *= _KEPT ** len(nodes)
        numbers = np.unique(nodes)
        for number, expected in zip(numbers.tolist(), self.of(numbers).tolist(), strict=True):
            if number == PLAIN and self._plain_costs and not switched:
                continue  # compared with itself
            timed = seconds[nodes == number]
            cost = float(np.median(timed)) / slowdown
            self._add(number, min(cost, _MOST * expected), len(timed))
        self._last, self._slowdown = kind, self._ratio(nodes, seconds)

    @property
    def plain(self) -> float | None:
        """The cost of plain decoding, or None if it was timed too seldom."""
        costs = self._plain_costs
        return float(np.median(costs)) if len(costs) >= ENOUGH else None

    @property
    def settled(self) -> bool:
        """True if times of this process outweigh another's of plain decoding."""
        return self._before is None or 2 * len(self._plain) > ENOUGH

    @property
    def known(self) -> dict[int, float]:
        """The costs that were timed, by number of nodes."""
        known = {nodes: float(cost / weight) for nodes, (cost, weight) in self._sums.items()}
        return known if self.plain is None else {PLAIN: self.plain, **known}

    def of(self, nodes: np.ndarray) -> np.ndarray:
        """Returns the costs of numbers of nodes, float [n]."""
        highest = max(int(nodes.max()), 8, *self._sums)
        numbers = np.arange(highest + 1)
        costs, weights = np.zeros((2, highest + 1))
        costs[[0, 8]] = _ASSUMED * self._assumed(numbers[[0, 8]])
        weights[[0, 8]] = _ASSUMED
        for number, (cost, weight) in self._sums.items():
            costs[number] += cost
            weights[number] += weight
        bends = np.diff(np.eye(highest + 1), n=2, axis=0)
        curve = np.linalg.solve(np.diag(weights) + _STIFF * bends.T @ bends, costs)
        found = np.maximum.accumulate(np.maximum(curve, 0.1))[np.maximum(nodes, 0)]
        plain = float(np.median(self._plain_costs or [1.0]))
        return np.where(nodes == PLAIN, plain, found)

    @property
    def _plain_costs(self) -> list[float]:
        """Costs of plain decoding; another process's stands for those still missing."""
        missing = 0 if self._before is None else max(ENOUGH - len(self._plain), 0)
        return [*self._plain, *missing * [self._before or 1.0]]

    def _ratio(self, nodes: np.ndarray, seconds: np.ndarray) -> float:
        return float(np.median(seconds / self.of(nodes)))

    def _assumed(self, nodes: np.ndarray) -> np.ndarray:
        return 1 + self._slope * (nodes - PLAIN)

    def _add(self, nodes: int, cost: float, weight: float) -> None:
        if nodes == PLAIN:
            self._plain.append(cost)
        else:
            self._sums[nodes] = self._sums.get(nodes, np.zeros(2)) + np.array(
                [weight * cost, weight]
            )


class Known(NamedTuple):
    """Knowledge of a program's steps.

    Attributes:
      costs: by number of nodes.
      outcomes: float [BINS, 2], see `dart_jax.decoding.paying.outcomes_of`.
    """

    costs: dict[int, float]
    outcomes: np.ndarray

    @classmethod
    def nothing(cls) -> Known:
        """Before the first step."""
        return cls({}, np.zeros((BINS, 2)))

    def differs(self, other: Known) -> bool:
        """True if anything has changed by much."""
        pairs = [(self.costs.get(nodes), cost) for nodes, cost in other.costs.items()]
        pairs.append((self.outcomes[:, 0].sum() + 1, other.outcomes[:, 0].sum() + 1))
        return any(old is None or not old / _CHANGED < new < old * _CHANGED for old, new in pairs)

    @classmethod
    def read(cls, path: Path) -> Known:
        """Returns what another process knew, if the file is there and not damaged."""
        try:
            content = json.loads(path.read_text())
            costs = {int(k): float(v) for k, v in content["costs"].items()}
            outcomes = np.array(content["outcomes"], float)
            numbers = np.array([*costs.values(), *outcomes.flat])
            right = outcomes.shape == (BINS, 2) and np.isfinite(numbers).all()
            if right and (numbers >= 0).all() and all(costs.values()):
                return cls(costs, outcomes)
        except (OSError, ValueError, AttributeError, TypeError, KeyError, OverflowError):
            pass
        return cls.nothing()

    def write(self, path: Path) -> None:
        """Writes the knowledge. Where that is not possible every process learns it again."""
        content = {"costs": self.costs, "outcomes": self.outcomes.round(1).tolist()}
        try:
            write_atomically(path, (json.dumps(content) + "\n").encode())
        except (OSError, UserError) as error:
            _logger.warning("the costs of draft trees are not kept: %s", error)


def path_for(directory: Path, program: Hashable) -> Path:
    """Returns the file of what is known of a program, whose `repr` is the same in every process."""
    device = jax.devices()[0].device_kind, available_cores(), jax.__version__
    name = hashlib.sha256(repr((program, device)).encode()).hexdigest()[:32]
    return directory / f"{name}.json"
