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

# Steps that a cost of another process counts as, and what is assumed of 0 and of 8 nodes; and steps
# that a bend of the curve counts as.
_BEFORE, _ASSUMED, _STIFF = 2.0, 1.0, 15.0

# Parts of earlier times that are kept from step to step, and where all are timed again.
_KEPT, _KEPT_ANEW = 0.9995, 0.5

# A time counts as at most so many times what was expected: the machine did something else.
_MOST = 4.0

# Knowledge is written again if a cost, or the number of nodes that were tried, has changed by this
# factor.
_CHANGED = 1.5


class StepCosts:
    """Relative times of steps by their nodes, on a machine as busy as at the first burst.

    Only ratios matter: a machine that is busy, or texts that grow, slow all steps down. So each
    step is compared with the others of its burst, which says nothing of numbers of nodes that the
    burst lacks, and a burst of a single number with the burst before. Costs lie on a curve that
    bends no more than many steps say: the first rows of a product are nearly free where memory is
    slow, others are not. Plain decoding's cost is kept separately.
    """

    def __init__(self, slope: float, most: int, known: Mapping[int, float] | None = None):
        """Begins with costs of another process, which weigh little, and plain decoding's until it
        was timed often enough.

        Args:
          slope: the part of a plain step that a node costs, and a pass of the drafter, as long as
            nothing was timed.
          most: the largest number of nodes.
          known: these costs.
        """
        self._numbers = np.arange(max(most, 8) + 1)
        self._timed = np.zeros(len(self._numbers), bool)
        # Logarithms, as only ratios are known: of a line at first; and the curve's departure from
        # it as the minimum of a quadratic form.
        self._line = np.log(1 + slope * (self._numbers - PLAIN))
        bends, assumed = np.diff(np.eye(len(self._line)), n=2, axis=0), np.zeros(len(self._line))
        assumed[[0, 8]] = _ASSUMED
        self._stiff = _STIFF * bends.T @ bends + np.diag(assumed)
        self._weights, self._sums = np.zeros_like(self._stiff), np.zeros_like(self._line)
        self._curve: np.ndarray | None = None
        self._plain: deque[float] = deque(maxlen=_LATEST)
        self._last: Hashable = None  # kind of the last burst
        self._slowdown = 1.0  # at that burst
        self._before = (known or {}).get(PLAIN)
        others = {n: cost for n, cost in (known or {}).items() if n in self._numbers}
        if others:
            costs = np.array([*others.values()])
            self._add(np.array([*others]), costs, np.full(len(costs), _BEFORE))

    def learn(
        self, kind: Hashable, nodes: np.ndarray, seconds: np.ndarray, *, anew: bool = False
    ) -> None:
        """Adds the times of a burst's steps.

        Args:
          kind: of the burst.
          nodes: int [n], verified by each step, or `PLAIN` in all.
          seconds: float [n].
          anew: whether all numbers of nodes are timed again.
        """
        switched = self._last not in (None, kind)
        slowdown = self._slowdown if switched else self._ratio(nodes, seconds)
        kept = _KEPT_ANEW if anew else _KEPT ** len(nodes)
        self._weights, self._sums = kept * self._weights, kept * self._sums
        numbers, counts = np.unique(nodes, return_counts=True)
        costs = np.array([np.median(seconds[nodes == number]) for number in numbers]) / slowdown
        costs = np.minimum(costs, _MOST * self.of(numbers))
        if numbers[0] != PLAIN:
            self._add(numbers, costs, counts, alone=switched and len(numbers) == 1)
        elif switched or not self._plain_costs:  # otherwise it is compared with itself
            self._plain.append(float(costs[0]))
        self._last, self._slowdown = kind, self._ratio(nodes, seconds)

    @property
    def plain(self) -> float | None:
        """The cost of plain decoding, or None if it was timed too seldom."""
        costs = self._plain_costs
        return float(np.median(costs)) if len(costs) >= ENOUGH else None

    @property
    def known(self) -> dict[int, float]:
        """The costs that were timed, by number of nodes."""
        timed = self._numbers[self._timed]
        known = dict(zip(timed.tolist(), self.of(timed).tolist(), strict=True))
        return known if self.plain is None else {PLAIN: self.plain, **known}

    def of(self, nodes: np.ndarray) -> np.ndarray:
        """Returns the costs of numbers of nodes, float [n]."""
        if self._curve is None:
            departure = np.linalg.solve(self._weights + self._stiff, self._sums)
            self._curve = np.maximum.accumulate(np.exp(self._line + departure))
        plain = float(np.median(self._plain_costs or [1.0]))
        return np.where(nodes == PLAIN, plain, self._curve[np.maximum(nodes, 0)])

    @property
    def _plain_costs(self) -> list[float]:
        """Costs of plain decoding; another process's stands for those still missing."""
        missing = 0 if self._before is None else max(ENOUGH - len(self._plain), 0)
        return [*self._plain, *missing * [self._before or 1.0]]

    def _ratio(self, nodes: np.ndarray, seconds: np.ndarray) -> float:
        return float(np.median(seconds / self.of(nodes)))

    def _add(
        self, numbers: np.ndarray, costs: np.ndarray, counts: np.ndarray, alone: bool = False
    ) -> None:
        """Adds costs of numbers of nodes, timed so often; unless `alone`, only how they differ."""
        weights = np.diag(counts.astype(float))
        if not alone:
            weights -= np.outer(counts, counts) / counts.sum()
        self._weights[np.ix_(numbers, numbers)] += weights
        self._sums[numbers] += weights @ (np.log(costs) - self._line[numbers])
        self._timed[numbers] = True
        self._curve = None


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
