"""Pair scores: what a drafter's parallel predictions lack is learned for pairs of neighbours.

All positions are predicted in one forward pass, so none knows which token another will take. A pair
score of low rank mends that for two neighbours: the logits of a position become

    logits(x) + (prev[a] * (1 + gate(x))) . next

for the token a before it (docs/method.md, section 2). Only the scores of the few candidates are
ever computed, in the same program as the draft.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.layers import Linear, random_param


class PairScores(nnx.Module):
    """Scores of rank r for pairs of draft ids; a new one scores every pair 0.

    Attributes:
      prev: [Vd, r], of the first token of a pair.
      next: [Vd, r], of the second one.
      gate: what the position of the second one makes of each of the r factors.
    """

    def __init__(self, config: DrafterConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None):
        shape = (config.draft_vocab_size, config.pair_rank)
        self.prev = random_param(rngs, shape, dtype)
        self.next = nnx.Param(jnp.zeros(shape, dtype))
        self.gate = Linear(config.hidden_size, config.pair_rank, dtype=dtype, rngs=rngs)
        self.gate.kernel[...] = jnp.zeros_like(self.gate.kernel[...])

    def factors(self, normed: jax.Array, prev: jax.Array) -> jax.Array:
        """The factors of pairs that begin with draft ids `prev`.

        Args:
          normed: [..., D], what the head reads at the second token's position.
          prev: int32 [...], of the same shape without D.

        Returns:
          [..., r].
        """
        return jnp.take(self.prev[...], prev, axis=0) * (1 + self.gate(normed))

    def tables(self, normed: jax.Array, candidates: jax.Array) -> jax.Array:
        """Scores of all pairs of candidates of successive positions.

        Args:
          normed: [B, d, D], what the head reads.
          candidates: int32 [B, d, k], draft ids.

        Returns:
          float32 [B, d - 1, k, k]; [l - 1, a, b] is that of candidate a of position l - 1 and
          candidate b of position l.
        """
        gate = 1 + self.gate(normed[:, 1:])
        prev = jnp.take(self.prev[...], candidates[:, :-1], axis=0) * gate[:, :, None]
        following = jnp.take(self.next[...], candidates[:, 1:], axis=0)
        return jnp.einsum("blar,blcr->blac", prev, following, preferred_element_type=jnp.float32)

    def all_next(self, factors: jax.Array) -> jax.Array:
        """Scores of all second tokens: [..., r] -> float32 [..., Vd]."""
        return jnp.einsum(
            "...r,vr->...v", factors, self.next[...], preferred_element_type=jnp.float32
        )
