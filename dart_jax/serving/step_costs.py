"""What steps cost, by their number of rows, how they sample, and the size of their trees.

All kinds of steps are timed before the first request. While requests are served a step takes longer,
since texts are sent beside it and the machine may be busy with other things; how much longer is
observed for the sizes that run, and those that do not are taken to be slowed down as much as the one
that ran last.
"""

from __future__ import annotations

import statistics
from collections import deque

from dart_jax.serving.config import Level

# The latest steps of a kind that count, and as many of them that are needed to judge by.
_LATEST, _LEAST = 200, 8


class StepCosts:
    """Seconds of steps: measured in advance, and corrected by those that are observed."""

    def __init__(self) -> None:
        self._measured: dict[tuple[int, Level], dict[int, float]] = {}
        self._observed: dict[tuple[int, Level], dict[int, deque[float]]] = {}
        self._slowdown: dict[tuple[int, Level], float] = {}  # of the size that ran last

    def measure(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Sets what a step with trees of a size costs if nothing else runs."""
        self._measured.setdefault((rows, level), {})[size] = seconds

    def observe(self, rows: int, level: Level, size: int, seconds: float) -> None:
        """Adds what such a step took."""
        kind = rows, level
        if size not in self._measured.get(kind, {}):
            return
        latest = self._observed.setdefault(kind, {}).setdefault(size, deque(maxlen=_LATEST))
        latest.append(seconds)
        if len(latest) >= _LEAST:
            self._slowdown[kind] = statistics.median(latest) / self._measured[kind][size]

    def of(self, rows: int, level: Level) -> dict[int, float]:
        """Seconds by size; empty if nothing was measured."""
        kind = rows, level
        slowdown = self._slowdown.get(kind, 1.0)
        return {
            size: statistics.median(self._observed[kind][size])
            if self.is_observed(rows, level, size)
            else slowdown * seconds
            for size, seconds in self._measured.get(kind, {}).items()
        }

    def is_observed(self, rows: int, level: Level, size: int) -> bool:
        """Whether enough steps of a kind were observed to judge by."""
        return len(self._observed.get((rows, level), {}).get(size, ())) >= _LEAST

    def forget(self, *, drafted: bool) -> None:
        """Forgets what was observed of steps with trees, or of those without."""
        for sizes in self._observed.values():
            for size in [size for size in sizes if (size > 0) == drafted]:
                del sizes[size]
