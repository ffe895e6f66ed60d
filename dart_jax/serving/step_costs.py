"""What steps cost, by their number of rows, how they sample, and the size of their trees.

All kinds of steps are timed before the first request. While requests are served a step takes
longer, since texts are sent beside it and the machine may be busy with other things. How much
longer is observed for the sizes that run; those that do not are taken to be slowed down as much as
the one that ran last.
"""

from __future__ import annotations

import statistics
from collections import deque

from dart_jax.serving.config import Level

# The latest steps of a kind that count; after so many more of them their median is taken anew, the
# first time when there is enough to judge by.
_LATEST, _EVERY = 200, 8

Kind = tuple[int, Level]


class StepCosts:
    """Seconds of steps: measured in advance, and corrected by those that are observed."""

    def __init__(self) -> None:
        self._measured: dict[Kind, dict[int, float]] = {}
        self._latest: dict[Kind, dict[int, deque[float]]] = {}
        self._observed: dict[Kind, dict[int, float]] = {}  # their medians
        self._new: dict[Kind, dict[int, int]] = {}  # steps since these were taken
        self._costs: dict[Kind, dict[int, float]] = {}  # what all this amounts to
        self._slowdown: dict[Kind, float] = {}  # of the size that ran last

    def measure(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Sets what a step with trees of a size costs if nothing else runs."""
        self._measured.setdefault((rows, level), {})[size] = seconds
        self._estimate((rows, level))

    def observe(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Adds what such a step took."""
        kind = rows, level
        if size not in self._measured.get(kind, {}):
            return
        latest = self._latest.setdefault(kind, {}).setdefault(size, deque(maxlen=_LATEST))
        latest.append(seconds)
        new = self._new.setdefault(kind, {})
        new[size] = new.get(size, 0) + 1
        if new[size] % _EVERY == 0:
            median = statistics.median(latest)
            self._observed.setdefault(kind, {})[size] = median
            self._slowdown[kind] = median / self._measured[kind][size]
            self._estimate(kind)

    def of(self, rows: int, level: Level) -> dict[int, float]:
        """Seconds by size; empty if nothing was measured."""
        return self._costs.get((rows, level), {})

    def is_observed(self, rows: int, level: Level, size: int) -> bool:
        """Whether enough steps of a kind were observed to judge by."""
        return size in self._observed.get((rows, level), {})

    def _estimate(self, kind: Kind) -> None:
        observed, slowdown = self._observed.get(kind, {}), self._slowdown.get(kind, 1.0)
        self._costs[kind] = {
            size: observed.get(size, slowdown * seconds)
            for size, seconds in self._measured[kind].items()
        }

    def forget(self, *, drafted: bool) -> None:
        """Forgets what was observed of steps with trees, or of those without."""
        for of_kind in (self._latest, self._observed, self._new):
            for sizes in of_kind.values():
                for size in [size for size in sizes if (size > 0) == drafted]:
                    del sizes[size]
        for kind in self._measured:
            self._estimate(kind)
