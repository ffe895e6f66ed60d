"""DART: one forward drafts all positions; the host's search joins them into a tree."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.models.cache import KVCache, cache_from, extend, wait_for
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.pure import bind


@dataclasses.dataclass(frozen=True)
class Dart(DraftingMethod):
    """See `dart_jax.decoding.drafting.base.DraftingMethod`; its memory is the drafter's cache of the known tokens.

    Attributes:
      config: the drafter's shapes.
      nodes: tree nodes without the root, N.
      most: candidates handed over at each position, or the whole draft vocabulary if that is
        smaller.
    """

    config: DrafterConfig
    nodes: int
    most: int

    @property
    def depth(self) -> int:
        """Deepest level of a tree."""
        return min(self.config.num_positions, self.nodes)

    @property
    def searches(self) -> bool:
        """The host joins the candidates into a tree."""
        return True

    @property
    def candidates(self) -> int:
        """Candidates a position, k."""
        return min(self.most, self.config.draft_vocab_size)

    def __call__(self, memory: KVCache | None, inputs: DraftInput) -> tuple[KVCache, Proposal]:
        """Drafts; see the base class."""
        logits, rows = self.forward(memory, inputs)
        ids, logits = self.top_candidates(inputs.params["draft_ids"], logits)
        proposal = Proposal(candidates=(ids, logits))
        if memory is None:
            return cache_from(rows, inputs.capacity), proposal
        return extend(memory, rows, wait_for(ids, inputs.start)), proposal

    def forward(self, memory: KVCache | None, inputs: DraftInput) -> tuple[jax.Array, KVCache]:
        """The drafter: float32 logits [B, d, Vd], and the rows for its cache. A tree too small for
        all its positions is drafted from the first ones alone."""
        drafter = bind(self.config.shortened(self.depth), inputs.params["drafter"])
        embeds = inputs.target.embed(inputs.following)
        return drafter(inputs.features, embeds, inputs.positions, inputs.last, memory, inputs.start)

    def top_candidates(
        self, draft_ids: jax.Array, logits: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The candidates of every position, [B, d, k]: int32 ids and float32 logits."""
        best, index = jax.lax.top_k(logits, self.candidates)
        return jnp.take(draft_ids, index), best
