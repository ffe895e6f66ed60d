"""Block drafters: one forward pass drafts all positions, and the search builds the tree from them.

The drafter's layers know the context and the root, not one another's tokens. Pair scores, where it
has them, are read twice: a greedy *walk* along the positions, which is the chain that its authors'
code drafts, decides on each position's candidates; the search then weighs all pairs of these. With
one candidate per position the tree is that chain.
"""

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
from dart_jax.decoding.sampling import Noise, divided
from dart_jax.decoding.vocabulary import Vocabulary
from dart_jax.models.attention.compaction import extend, keep_rows
from dart_jax.models.cache import Cache
from dart_jax.models.drafter_config import BlockConfig
from dart_jax.models.networks.block import BlockDrafter
from dart_jax.models.networks.pure import bind


@dataclasses.dataclass(frozen=True)
class Block(Parallel):
    """Drafts with a block drafter (see the base class); only the context is cached."""

    config: BlockConfig

    @property
    def candidates(self) -> int:
        """Candidates per drafted position, k; no more than a selector chooses from."""
        return min(super().candidates, self.config.selector_top_k or self.max_candidates)

    def read(self, draft_state: Cache, rows: PromptRows) -> Cache:
        """Reads rows of the prompts; see the base class."""
        drafter: BlockDrafter = bind(self.config, rows.params["drafter"], rows.options)
        read = drafter.keys(drafter.context(rows.features), rows.positions)
        return keep_rows(draft_state, read, rows.start, rows.options.attention)

    def __call__(self, draft_state: Cache, inputs: DraftInput) -> tuple[Cache, Proposal]:
        """Drafts; see the base class."""
        drafter: BlockDrafter = bind(self.config, inputs.params["drafter"], inputs.options)
        read = drafter.keys(drafter.context(inputs.features), inputs.positions)
        cache = extend(draft_state, read, inputs.start, inputs.options.attention)
        last = inputs.last[:, None]
        root = jnp.take_along_axis(inputs.next_tokens, last, axis=1)
        length = inputs.start + inputs.last + 1
        normed = self.run(drafter, inputs, root, cache, length)
        logits = drafter.logits(normed, inputs.target.logits)
        candidates = self._candidates(drafter, inputs, root[:, 0], logits, normed)
        confidence = None
        if self.config.confidence is not None:
            confidence = self._confidence(drafter, root, candidates, normed)
        return cache, Proposal(candidates=candidates, confidence=confidence)

    def run(
        self,
        drafter: BlockDrafter,
        inputs: DraftInput,
        root: jax.Array,
        cache: Cache,
        length: jax.Array,
    ) -> jax.Array:
        """Runs the block; returns what the head reads in the first rows that predict, as many as
        the tree can use: [B, depth, D]."""
        config = self.config
        size = config.block_size
        if len(config.causal_layers) == config.num_hidden_layers:
            size = self.depth + (not config.shifted)  # no row sees those after it
        masks = jnp.full((root.shape[0], size - 1), config.mask_token_id, jnp.int32)
        tokens = jnp.concatenate([root, masks], axis=1)
        embeds = drafter.embedding(inputs.target.embed)(tokens)
        positions = length[:, None] + jnp.arange(size, dtype=jnp.int32)[None]
        return drafter(embeds, positions, cache, length)[:, : self.depth]

    def _vocabulary(self, inputs: DraftInput) -> Vocabulary:
        """The draft vocabulary, of whose logits each device has a part where devices share the
        head: the target's may be shared by those that each have the whole drafter."""
        options = inputs.options if self.config.own_head else inputs.target.options
        return Vocabulary(options.shards)

    def _candidates(
        self,
        drafter: BlockDrafter,
        inputs: DraftInput,
        root: jax.Array,
        logits: jax.Array,
        normed: jax.Array,
    ) -> Candidates:
        """Chooses each position's candidates and scores their pairs.

        Args:
          drafter: bound to its parameters.
          inputs: of the draft.
          root: int32 [B], the newest token.
          logits: float32 [B, d, Vd], without pair scores; a device's part of the vocabulary.
          normed: [B, d, D], what the head has read.
        """
        draft_ids, vocabulary = inputs.params["draft_ids"], self._vocabulary(inputs)
        if not self.config.pair_rank:
            with jax.named_scope("top_k"):
                top, index = most_coupled(inputs, logits, draft_ids, self.candidates, vocabulary)
                return Candidates(jnp.take(draft_ids, index), top)
        with jax.named_scope("walk"):
            top, index = self._walk(drafter, inputs, root, logits, normed)
        ids = jnp.take(draft_ids, index)
        if not self.pairs:
            return Candidates(ids, top)
        tables = drafter.pairs.tables(normed, ids, index)
        if inputs.noise is not None:  # as `coupled` divides the logits
            tables = divided(inputs.sampling, tables)
        # The search adds the score of each pair itself: what the walk has added is taken off.
        top = top.at[:, 1:].add(-tables[:, :, 0])
        return Candidates(ids, top, tables)

    def _confidence(
        self, drafter: BlockDrafter, root: jax.Array, candidates: Candidates, normed: jax.Array
    ) -> jax.Array:
        """Returns the probabilities of the head of confidence, float32 [B, d], after the likeliest
        tokens; see `_candidates`."""
        first = None
        if self.config.confidence == "pairs":
            before = jnp.concatenate([root, candidates.ids[:, :-1, 0]], axis=1)
            first = drafter.pairs.first_factors(before)
        return jax.nn.sigmoid(drafter.confidence(normed, first))

    def _walk(
        self,
        drafter: BlockDrafter,
        inputs: DraftInput,
        root: jax.Array,
        logits: jax.Array,
        normed: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Takes the most likely tokens of each position after the first one of the position before.

        Returns:
          Their logits, pair scores and noise included, float32 [B, d, k], descending; and their
          draft ids, int32.
        """
        draft_ids, vocabulary = inputs.params["draft_ids"], self._vocabulary(inputs)
        pairs, most = drafter.pairs, self.config.selector_top_k
        previous, rows = root, []
        if most is not None:
            threshold = vocabulary.top(logits, most)[..., -1:]
            logits = jnp.where(logits < threshold, -jnp.inf, logits)

        def best(logits: jax.Array, noise: Noise | None, count: int) -> tuple[jax.Array, jax.Array]:
            noisy = inputs._replace(noise=noise)
            return most_coupled(noisy, logits, draft_ids, count, vocabulary)

        # The next position waits for the first token only; the others are found all at once.
        for level in range(self.depth):
            factors = pairs.factors(normed[:, level], previous)
            rows.append(logits[:, level] + pairs.all_next(factors, vocabulary.shards))
            noise = None if inputs.noise is None else inputs.noise.at(jnp.int32(level))
            _, first = best(rows[-1][:, None], noise, 1)
            previous = jnp.take(draft_ids, first[:, 0, 0])
        return best(jnp.stack(rows, axis=1), inputs.noise, self.candidates)
