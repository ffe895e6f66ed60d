"""DART: one forward drafts all positions; the host's search joins them into a tree."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.cache import KVCache, extend
from dart_jax.config import DrafterConfig
from dart_jax.drafting.base import Known, Proposal
from dart_jax.pure import bind


@dataclasses.dataclass(frozen=True)
class Dart:
    """See `dart_jax.drafting.base.Drafting`; its memory is the drafter's cache of the known tokens.

    Attributes:
      config: the drafter's shapes.
      nodes: tree nodes without the root, N.
      most: candidates handed over at each position, or the whole draft vocabulary if that is
        smaller.
    """

    config: DrafterConfig
    nodes: int
    most: int
    searches = True

    @property
    def depth(self) -> int:
        """Deepest level of a tree."""
        return min(self.config.num_positions, self.nodes)

    @property
    def positions(self) -> int:
        """Drafted positions, d."""
        return self.config.num_positions

    @property
    def candidates(self) -> int:
        """Candidates a position, k."""
        return min(self.most, self.config.draft_vocab_size)

    def __call__(self, memory: KVCache, known: Known) -> tuple[KVCache, Proposal]:
        """Drafts; see the protocol."""
        drafter = bind(self.config, known.params["drafter"])
        cache = memory if known.start is not None else None
        embeds = known.target.embed(known.following)
        draft, rows = drafter(
            known.features, embeds, known.positions, known.last, cache, known.start
        )
        logits, index = jax.lax.top_k(draft, self.candidates)
        ids = jnp.take(known.params["draft_ids"], index)
        return extend(memory, rows, known.start, known.capacity), Proposal(candidates=(ids, logits))
