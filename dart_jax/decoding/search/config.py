"""Parameters of the tree search, and the ways to run it."""

from __future__ import annotations

import dataclasses
from typing import Literal

# In C++ on the host; in JAX on the device; or the platform's best.
SearchWay = Literal["auto", "host", "device"]


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """Parameters of the tree search (docs/method.md, section 3), with the paper's defaults.

    Attributes:
      beam: nodes per level that are extended.
      level_decay: exponent of the level weight.
      logit_decay: base of the logit weight.
      ngram_weight: weight of the n-gram model's log-probability.
    """

    beam: int = 20
    level_decay: float = 0.7
    logit_decay: float = 0.9
    ngram_weight: float = 0.5
