"""Whether a measured difference is one, and the one that the paper has."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

RULE = (
    "Rule: a difference is the mean over seeds of the differences at the same seed, with the half "
    "width of its 95 % confidence interval (Student's t). One whose interval holds 0 is within the "
    "spread. Any other agrees with the paper if it has the sign of the paper's, else it disagrees; "
    "its size is not judged."
)
# Student's t, 97.5 %, by degrees of freedom from 1; the last serves for all above.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Difference(NamedTuple):
    """Of two variants.

    Attributes:
      mean: over seeds.
      half: half the width of its 95 % confidence interval; infinite with one seed.
    """

    mean: float
    half: float

    def __str__(self) -> str:
        spread = f" ± {self.half:.3f}" if math.isfinite(self.half) else ""
        return f"{round(self.mean, 3) + 0.0:+.3f}{spread}"


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """How much more the first has than the second; a figure a seed, in the same order."""
    each = [a - b for a, b in zip(first, second, strict=True)]
    if len(each) < 2:
        return Difference(each[0], math.inf)
    error = statistics.stdev(each) / math.sqrt(len(each))
    return Difference(statistics.fmean(each), _T[min(len(each) - 1, len(_T)) - 1] * error)


def verdict(measured: Difference, paper: float | None = None) -> str:
    """In words, by `RULE`.

    Args:
      measured: ours.
      paper: the paper's; None where it is not known, which leaves only more or less.
    """
    if math.isinf(measured.half):
        return "one seed has no spread, so nothing is decided"
    if abs(measured.mean) <= measured.half:
        return "within the spread"
    if paper is None:
        return "more" if measured.mean > 0 else "less"
    return "agrees" if measured.mean * paper > 0 else "disagrees"
