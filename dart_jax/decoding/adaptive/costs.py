"""What steps cost, by the size of their trees: measured as they are run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

# Bursts of one size that must have been timed before its cost counts as known, and the latest that
# are remembered. Their lowest quartile is taken: what disturbs a machine only makes it slower.
ENOUGH = 3
_REMEMBERED = 9


class StepCosts:
    """Seconds per step of a batch, by tree size; 0 is plain decoding."""

    def __init__(self, known: Mapping[int, float] | None = None):
        """Begins with the costs that are known from before."""
        self._seconds: dict[int, deque[float]] = {}
        for size, seconds in (known or {}).items():
            self._of(size).extend([seconds] * ENOUGH)

    def learn(self, size: int, seconds: float) -> None:
        """Adds the seconds per step of a burst."""
        self._of(size).append(seconds)

    @property
    def known(self) -> dict[int, float]:
        """The costs of sizes that were timed often enough, ascending."""
        timed = sorted(self._seconds.items())
        return {size: sorted(all)[len(all) // 4] for size, all in timed if len(all) >= ENOUGH}

    def expected(self, sizes: Iterable[int]) -> dict[int, float]:
        """The costs of sizes, on a line through the nearest known ones where they are not known.

        Needs at least two known sizes.
        """
        known = self.known
        return {size: known.get(size) or _on_line(known, size) for size in sizes}

    def _of(self, size: int) -> deque[float]:
        return self._seconds.setdefault(size, deque(maxlen=_REMEMBERED))


def _on_line(known: Mapping[int, float], size: int) -> float:
    """The value at `size` of a line through the two nearest known sizes, on both sides of it if
    possible."""
    below = [each for each in known if each < size][-1:]
    above = [each for each in known if each > size][: 2 - len(below)]
    if len(below) + len(above) < 2:
        below = [each for each in known if each < size][-2:]
    first, second = (*below, *above)
    slope = (known[second] - known[first]) / (second - first)
    return max(known[first] + slope * (size - first), 1e-9)
