"""Drawing tokens, with noise that depends on (seed, row, absolute position) alone.

So the same seed gives the same token whether a position is reached by plain decoding or as a node
of a draft tree.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the target's logits become a token; applied in this order, as `transformers` does.

    Attributes:
      temperature: divides the logits; 0 takes the most likely token.
      top_k: keep the k most likely tokens; 0 keeps all.
      top_p: keep the smallest set of most likely tokens whose probability reaches p.
        Tokens tied with the last one kept are kept too.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 or a positive number, got {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top-k must be 0 (off) or positive, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, got {self.top_p}")


def draw(
    sampling: Sampling, logits: jax.Array, seed: jax.Array, position: jax.Array, levels: jax.Array
) -> jax.Array:
    """Draws one token a node.

    Args:
      sampling: static.
      logits: float32 [B, T, V].
      seed: uint32 scalar.
      position: int32 [B, P], absolute positions of the tokens drawn on each level.
      levels: int32 [B, T], the level of each node: its noise is that of `position[level]`.

    Returns:
      int32 [B, T].
    """
    chex.assert_shape(levels, logits.shape[:2])
    chex.assert_type(logits, jnp.float32)
    if sampling.temperature == 0:
        return _argmax(logits)
    logits = keep_likely(sampling, logits / sampling.temperature)
    noise = _noise(seed, position, logits.shape[-1])
    noise = jnp.take_along_axis(noise, levels[:, :, None], axis=1)
    return _argmax(logits + noise)


def keep_likely(sampling: Sampling, logits: jax.Array) -> jax.Array:
    """Sets what top-k and top-p leave out to -inf; logits are already divided by temperature."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, sampling.top_k)[0][..., -1:]
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    if sampling.top_p < 1:
        probability = jax.nn.softmax(logits, axis=-1)
        least = _nucleus_threshold(probability, sampling.top_p)
        logits = jnp.where(probability >= least, logits, -jnp.inf)
    return logits


def _argmax(x: jax.Array) -> jax.Array:
    """The first index of the last axis's maximum, int32.

    Two plain reductions: XLA's CPU code for `jnp.argmax` takes four times as long.
    """
    index = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    top = jnp.max(x, axis=-1, keepdims=True)
    return jnp.min(jnp.where(x == top, index, x.shape[-1] - 1), axis=-1)


def _nucleus_threshold(probability: jax.Array, top_p: float) -> jax.Array:
    """The largest value such that the tokens at least that likely sum to `top_p` or more.

    A bisection over the bits of a float32, whose order is that of the non-negative numbers they
    stand for: 30 masked sums cost less than a sort of the vocabulary.
    """
    low = jnp.zeros((*probability.shape[:-1], 1), jnp.int32)
    high = jnp.full_like(low, jax.lax.bitcast_convert_type(jnp.float32(1.0), jnp.int32) + 1)

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        value = jax.lax.bitcast_convert_type(middle, jnp.float32)
        mass = jnp.sum(jnp.where(probability >= value, probability, 0.0), -1, keepdims=True)
        enough = mass >= top_p
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
    return jax.lax.bitcast_convert_type(low, jnp.float32)


def _noise(seed: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """Gumbel noise float32 [B, P, V]; row b's depends on (seed, b, position) alone."""

    def row(index, positions):
        key = jax.random.fold_in(jax.random.key(seed), index)
        keys = jax.vmap(lambda p: jax.random.fold_in(key, p))(positions)
        return jax.vmap(lambda k: jax.random.gumbel(k, (vocab,), jnp.float32))(keys)

    return jax.vmap(row)(jnp.arange(position.shape[0], dtype=jnp.int32), position)
