"""How a program samples: each level serves the requests of those before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

# How a step samples; each of them serves the requests of those before it. `filtered` has top-k,
# top-p and min-p, `full` penalties, logit bias and log-probabilities as well.
Level = Literal["greedy", "sampled", "filtered", "full"]
LEVELS: tuple[Level, ...] = ("greedy", "sampled", "filtered", "full")


def highest(levels: Iterable[Level]) -> Level:
    """The lowest level that serves the requests of all of these."""
    return LEVELS[max(map(LEVELS.index, levels))]
