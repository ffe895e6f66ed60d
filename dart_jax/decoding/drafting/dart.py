"""DART: one forward pass drafts all positions; the host's search builds the tree from them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.decoding.top_k import exact_top_k
from dart_jax.models.cache import KVCache, cache_from, extend, wait_for
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.pure import bind


@dataclasses.dataclass(frozen=True)
class Dart(DraftingMethod):
    """Drafts with a DART drafter (see the base class); `draft_state` is its KV cache.

    Attributes:
      config: the drafter's shapes.
      nodes: tree nodes without the root, N.
      max_candidates: candidates per drafted position; the whole draft vocabulary if that is
        smaller.
    """

    config: DrafterConfig
    nodes: int
    max_candidates: int

    @property
    def depth(self) -> int:
        """Maximum depth of a tree."""
        return min(self.config.num_positions, self.nodes)

    @property
    def searches(self) -> bool:
        """True: the host builds the tree from the candidates."""
        return True

    @property
    def candidates(self) -> int:
        """Candidates per drafted position, k."""
        return min(self.max_candidates, self.config.draft_vocab_size)

    def __call__(self, draft_state: KVCache | None, inputs: DraftInput) -> tuple[KVCache, Proposal]:
        """Drafts; see the base class."""
        logits, rows = self.forward(draft_state, inputs)
        ids, logits = self.top_candidates(inputs.params["draft_ids"], logits)
        proposal = Proposal(candidates=(ids, logits))
        if draft_state is None:
            return cache_from(rows, inputs.capacity), proposal
        return extend(draft_state, rows, wait_for(ids, inputs.start)), proposal

    def forward(self, cache: KVCache | None, inputs: DraftInput) -> tuple[jax.Array, KVCache]:
        """Runs the drafter; returns float32 logits [B, d, Vd] and the new rows for its cache.

        If the tree is too small to use all drafted positions, only the first ones are computed.
        """
        drafter = bind(
            self.config.shortened(self.depth), inputs.params["drafter"], inputs.target.execution
        )
        embeds = inputs.target.embed(inputs.next_tokens)
        return drafter(inputs.features, embeds, inputs.positions, inputs.last, cache, inputs.start)

    def top_candidates(
        self, draft_ids: jax.Array, logits: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns each position's top-k candidates, [B, d, k]: int32 ids and float32 logits."""
        top, index = exact_top_k(logits, self.candidates)
        return jnp.take(draft_ids, index), top
