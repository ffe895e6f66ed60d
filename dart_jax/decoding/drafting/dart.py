"""DART: one forward pass drafts all positions; the search builds the tree from them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting.base import (
    Candidates,
    DraftInput,
    Parallel,
    PromptRows,
    Proposal,
    most_coupled,
)
from dart_jax.decoding.sampling import divided
from dart_jax.decoding.vocabulary import Vocabulary
from dart_jax.models.attention.compaction import extend, keep_rows
from dart_jax.models.cache import Cache, first_rows, order_after
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.networks.pure import bind


@dataclasses.dataclass(frozen=True)
class Dart(Parallel):
    """Drafts with a DART drafter (see the base class)."""

    config: DartConfig

    def read(self, draft_state: Cache, rows: PromptRows) -> Cache:
        """Reads rows of the prompts; see the base class."""
        drafter = bind(self.config.shortened(1), rows.params["drafter"], rows.options)
        last = jnp.full_like(rows.start, rows.tokens.shape[1] - 1)
        embeds = drafter.embedding(rows.target.embed)(rows.next_tokens)
        # What is drafted is not used, so XLA leaves it out; the C++ core does with `only_rows`.
        before = first_rows(draft_state, rows.filled)
        _, read = drafter(rows.features, embeds, rows.positions, last, before, rows.start)
        return keep_rows(draft_state, read, rows.start, rows.options.attention)

    def __call__(self, draft_state: Cache, inputs: DraftInput) -> tuple[Cache, Proposal]:
        """Drafts; see the base class."""
        # A tree too small to use all drafted positions needs only the first ones.
        config = self.config.shortened(self.depth)
        drafter = bind(config, inputs.params["drafter"], inputs.options)
        embeds = drafter.embedding(inputs.target.embed)(inputs.next_tokens)
        normed, rows = drafter(
            inputs.features, embeds, inputs.positions, inputs.last, draft_state, inputs.start
        )
        logits = drafter.head(normed)
        draft_ids, vocabulary = inputs.params["draft_ids"], Vocabulary(inputs.options.shards)
        with jax.named_scope("top_k"):
            top, index = most_coupled(inputs, logits, draft_ids, self.candidates, vocabulary)
            ids = jnp.take(draft_ids, index)
        pairs = None
        if self.pairs:
            pairs = drafter.pairs.tables(normed, index, index)
            if inputs.noise is not None:  # as `coupled` divides the logits
                pairs = divided(inputs.sampling, pairs)
        cache = extend(draft_state, rows, order_after(ids, inputs.start), inputs.options.attention)
        return cache, Proposal(candidates=Candidates(ids, top, pairs))
