"""Learned scores of pairs of successive tokens, which parallel predictions lack."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from dart_jax.models.block_config import PairGate
from dart_jax.models.kernels.matmul import activations, factor, scaled
from dart_jax.models.kernels.tiles import Tiles, product
from dart_jax.models.layers.dense import Init, Linear
from dart_jax.models.sharding.collectives import local_shard


class PairScores(nnx.Module):
    """Scores of rank r for pairs of tokens; a new one scores every pair 0.

    Attributes:
      prev: [Vp, r], of the first token of a pair.
      next: [Vd, r], of the second one, a draft id; a loaded drafter's may be in tiles.
      gate: see `PairGate`.
    """

    def __init__(
        self, sizes: tuple[int, int], rank: int, hidden_size: int, form: PairGate, init: Init
    ):
        """Makes random first factors, of rank r, of vocabularies of Vp and Vd tokens."""
        self.form = form
        self.prev = init.random(sizes[0], rank)
        self.next = init.full(0, sizes[1], rank)
        if form == "sigmoid":
            width = hidden_size + rank
            self.gate = Linear(width, rank, init, bias=True)
        elif form != "none":
            self.gate = Linear(hidden_size, rank, init)
            if form == "residual":
                self.gate.kernel[...] = jnp.zeros_like(self.gate.kernel[...])

    def factors(self, normed: jax.Array, prev: jax.Array) -> jax.Array:
        """Returns the factors of pairs that begin with tokens `prev`.

        Args:
          normed: [..., D], what the head reads at the second token's position.
          prev: int32 [...], of the same shape without D, or [..., k] for k tokens each.

        Returns:
          [..., r], or [..., k, r].
        """
        first = self.first_factors(prev)
        if self.form == "none":
            return first
        several = first.ndim > normed.ndim
        if self.form == "sigmoid":
            if several:
                shape = (*first.shape[:-1], normed.shape[-1])
                normed = jnp.broadcast_to(normed[..., None, :], shape)
            inputs = jnp.concatenate([normed, first], axis=-1)
            return jax.nn.sigmoid(self.gate(inputs)) * first
        gate = self.gate(normed)
        if self.form == "residual":
            gate = 1 + gate
        return first * (gate[..., None, :] if several else gate)

    def first_factors(self, prev: jax.Array) -> jax.Array:
        """Returns the factors of first tokens alone: int32 [...] -> [..., r]."""
        table = self.prev[...]
        # The target's vocabulary may be padded further.
        rows = jnp.take(table, jnp.minimum(prev, table.shape[0] - 1), axis=0)
        return rows.astype(activations(table.dtype))

    def tables(self, normed: jax.Array, prev: jax.Array, candidates: jax.Array) -> jax.Array:
        """Scores of all pairs of candidates of successive positions.

        Args:
          normed: [B, d, D], what the head reads.
          prev: int32 [B, d, k], the candidates as first tokens.
          candidates: int32 [B, d, k], draft ids.

        Returns:
          float32 [B, d - 1, k, k]; [l - 1, a, b] is that of candidate a of position l - 1 and
          candidate b of position l.
        """
        first = self.factors(normed[:, 1:], prev[:, :-1])
        table, following = self.next.get_value(), candidates[:, 1:]
        if isinstance(table, Tiles):
            following = table.rows(following).astype(first.dtype)
        else:
            following = jnp.take(table, following, axis=0)
        first, by = factor(first, following.dtype)
        return scaled(
            jnp.einsum("blar,blcr->blac", first, following, preferred_element_type=jnp.float32), by
        )

    def all_next(self, factors: jax.Array, shards: int = 1) -> jax.Array:
        """Scores of all second tokens: [..., r] -> float32 [..., Vd]; of a device's part of them
        where `shards` devices share the head."""
        following = self.next.get_value()
        if isinstance(following, Tiles):
            return product(factors.astype(jnp.float32), following)
        if shards > 1:
            following = local_shard(following, shards, axis=0)
        factors, by = factor(factors, following.dtype)
        return scaled(
            jnp.einsum("...r,vr->...v", factors, following, preferred_element_type=jnp.float32), by
        )
