"""Several measurements of the same things: taken in turn, and in a cell of a table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax


def in_turn(works: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Times works in turn, so that a slow moment of the machine affects all of them.

    Args:
      works: by name; arrays that they return are waited for.
      repeats: rounds that count, after one that compiles.

    Returns:
      For each work the seconds of each round.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            jax.block_until_ready(work())
            if repeat:
                times[name].append(time.perf_counter() - start)
    return times


def spread(values: Sequence[float], form: str = ",.0f", unit: str = "") -> str:
    """The median and half of the range, such as `1.25x ±0.03`.

    Args:
      values: at least one.
      form: format of both numbers, such as `.2f`.
      unit: follows the median.
    """
    half = (max(values) - min(values)) / 2
    return f"{statistics.median(values):{form}}{unit} ±{half:{form}}"
