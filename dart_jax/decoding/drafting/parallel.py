"""The base of DART and block drafters: one forward pass predicts all positions, and a search builds
the tree from their candidates."""

from __future__ import annotations

import dataclasses

from jax.typing import DTypeLike

from dart_jax.decoding.drafting.base import DraftingMethod
from dart_jax.models.cache import KVCache, init_cache
from dart_jax.models.drafter_config import ParallelConfig
from dart_jax.models.kernels.options import LayerOptions


@dataclasses.dataclass(frozen=True)
class Parallel(DraftingMethod):
    """Base class of these methods (see its own base class); `draft_state` is the drafter's cache.

    Attributes:
      config: the drafter's shapes.
      nodes: tree nodes without the root, N.
      max_candidates: candidates per drafted position; the whole draft vocabulary if that is
        smaller.
    """

    config: ParallelConfig
    nodes: int
    max_candidates: int

    @property
    def depth(self) -> int:
        """Maximum depth of a tree."""
        return min(self.config.num_positions, self.nodes)

    @property
    def searches(self) -> bool:
        """True: the search builds the tree from the candidates."""
        return True

    @property
    def couples(self) -> bool:
        """True: candidates are ranked with the noise."""
        return True

    @property
    def candidates(self) -> int:
        """Candidates per drafted position, k."""
        return min(self.max_candidates, self.config.draft_vocab_size)

    @property
    def pairs(self) -> bool:
        """True if the drafter has pair scores, and trees have pairs."""
        return self.config.pair_rank > 0 and self.depth > 1

    def empty(self, batch: int, capacity: int, dtype: DTypeLike, options: LayerOptions) -> KVCache:
        """Returns a cache without rows; see the base class."""
        config, heads = self.config, self.config.num_key_value_heads // options.shards
        return init_cache(config.num_hidden_layers, batch, heads, capacity, config.head_dim, dtype)
