"""Decides whether a measured difference is significant and agrees with the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

RULE = (
    "Rule: a difference is the mean over seeds of the differences at the same seed, with the half "
    "width of its 95 % confidence interval (Student's t). If the interval contains 0, it is within "
    "the spread. Otherwise it agrees with the paper if it has the same sign as the paper's, and "
    "disagrees if not; its size does not matter."
)
# Student's t, 97.5 %, by degrees of freedom from 1; the last is used for all above.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Difference(NamedTuple):
    """The difference between two variants.

    Attributes:
      mean: mean over seeds.
      half: half the width of its 95 % confidence interval; infinite with one seed.
    """

    mean: float
    half: float

    def __str__(self) -> str:
        spread = f" ± {self.half:.3f}" if math.isfinite(self.half) else ""
        return f"{round(self.mean, 3) + 0.0:+.3f}{spread}"


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Returns first minus second; one figure per seed, in the same order."""
    each = [a - b for a, b in zip(first, second, strict=True)]
    if len(each) < 2:
        return Difference(each[0], math.inf)
    error = statistics.stdev(each) / math.sqrt(len(each))
    return Difference(statistics.fmean(each), _T[min(len(each) - 1, len(_T)) - 1] * error)


def verdict(measured: Difference, paper: float | None = None) -> str:
    """Returns the verdict by `RULE`.

    Args:
      measured: our difference.
      paper: the paper's difference; None if not published, then the verdict is more or less.
    """
    if math.isinf(measured.half):
        return "one seed has no spread, so there is no verdict"
    if abs(measured.mean) <= measured.half:
        return "within the spread"
    if paper is None:
        return "more" if measured.mean > 0 else "less"
    return "agrees" if measured.mean * paper > 0 else "disagrees"
