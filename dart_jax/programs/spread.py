"""Several measurements of the same thing in a cell of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], form: str = ",.0f", unit: str = "") -> str:
    """The median and half of the range, such as `1.25x ±0.03`.

    Args:
      values: at least one.
      form: format of both numbers, such as `.2f`.
      unit: follows the median.
    """
    half = (max(values) - min(values)) / 2
    return f"{statistics.median(values):{form}}{unit} ±{half:{form}}"
