"""The models that an engine decodes with."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams


@dataclasses.dataclass(frozen=True, eq=False)
class Models:
    """What decodes.

    Attributes:
      config: static; for the largest trees.
      params: see `DecodeParams`.
      search: for these trees; None if the drafting method needs none.
    """

    config: DecodeConfig
    params: DecodeParams
    search: TreeSearch | None
