"""Candidates of a step as the search on the device reads them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.ngram.device_table import EPS


class UsableCandidates(NamedTuple):
    """The usable candidates of each level by ascending token, each token once.

    Attributes:
      token: int32 [B, d, k]; -1 in the places that are left over, which come last.
      log_p: float32 [B, d, k], the weighted log-probability under the drafter; with pair scores
        [B, d, k, k], after each candidate of the level above. -inf in places that are left over.
    """

    token: jax.Array
    log_p: jax.Array


def read_candidates(
    tokens: jax.Array, logits: jax.Array, pairs: jax.Array | None, weights: np.ndarray
) -> UsableCandidates:
    """Reads the candidates.

    Args:
      tokens: int32 [B, d, k]; negative ones are skipped.
      logits: float32 [B, d, k]; candidates with one that is not finite are skipped. Of equal tokens
        the one with the largest logit counts, of these the first.
      pairs: float32 [B, d - 1, k, k], scores of pairs, parent by child; one that is not finite
        counts as 0. None for none.
      weights: float32 [d], the levels' logit weights, g.
    """
    k = tokens.shape[-1]
    usable = (tokens >= 0) & jnp.isfinite(logits)
    logits = jnp.where(logits == 0, np.float32(0), logits)  # a logit of -0 equals 0

    def other(x: jax.Array) -> jax.Array:
        return x[..., None, :]

    def own(x: jax.Array) -> jax.Array:
        return x[..., :, None]

    number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, k), 2)
    likelier = other(logits) > own(logits)
    earlier = (other(logits) == own(logits)) & (other(number) < own(number))
    better = other(usable) & (other(tokens) == own(tokens)) & (likelier | earlier)
    usable = usable & ~jnp.any(better, axis=-1)
    rank = jnp.sum(other(usable) & (other(tokens) < own(tokens)), axis=-1, dtype=jnp.int32)
    # Which candidate has each rank; k for none.
    has = own(number) == other(jnp.where(usable, rank, -1))
    column = jnp.min(jnp.where(has, other(number), k), axis=-1)
    left_over = column == k
    column = jnp.minimum(column, k - 1)

    def sorted_(x: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, column, axis=-1)

    token = jnp.where(left_over, -1, sorted_(tokens))
    logits = jnp.where(left_over, -np.float32(np.inf), sorted_(logits))
    weight = jnp.asarray(weights)[None, :, None]
    if pairs is None:
        return UsableCandidates(token, _weighted(logits, weight))
    pairs = jnp.pad(pairs, ((0, 0), (1, 0), (0, 0), (0, 0)))  # level 0 has none
    above = jnp.concatenate([column[:, :1], column[:, :-1]], axis=1)
    pairs = jnp.take_along_axis(pairs, above[..., None], axis=2)
    pairs = jnp.take_along_axis(pairs, column[..., None, :], axis=3)
    largest = np.finfo(np.float32).max
    summed = jnp.clip(logits[..., None, :] + pairs, -largest, largest)
    summed = jnp.where(jnp.isfinite(pairs), summed, logits[..., None, :])
    summed = jnp.where(left_over[..., None, :], -np.float32(np.inf), summed)
    return UsableCandidates(token, _weighted(summed, weight[..., None]))


def _weighted(logits: jax.Array, weight: jax.Array) -> jax.Array:
    """g log(p + eps), p the softmax over the last axis; -inf where the logit is."""
    left_over = logits == -np.inf
    largest = jnp.max(logits, axis=-1, keepdims=True)
    unnormalised = jnp.where(left_over, np.float32(0), jnp.exp(logits - largest))
    total = jnp.maximum(jnp.sum(unnormalised, axis=-1, keepdims=True), np.float32(1))
    log_p = jnp.minimum(jnp.log(unnormalised / total + EPS), np.float32(0))
    return jnp.where(left_over, -np.float32(np.inf), log_p * weight)
