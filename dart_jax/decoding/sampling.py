"""Drawing tokens, with noise that depends on (seed, row, absolute position) alone.

So the same seed gives the same token whether a position is reached by plain decoding or as a node
of a draft tree.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the target's logits become a token.

    Applied in this order, with the definitions of `transformers`: repetition penalty, temperature,
    top-k, top-p, min-p. (The DART reference cuts by top-p before top-k and has no min-p.) Tokens
    tied with the last one kept are kept too.

    Attributes:
      temperature: divides the logits; 0 takes the most likely token.
      top_k: keep the k most likely tokens; 0 keeps all.
      top_p: keep the smallest set of most likely tokens whose probability reaches p.
      min_p: keep tokens at least this fraction as likely as the most likely one.
      repetition_penalty: what makes tokens that the prompt or the text so far holds less likely,
        if above 1: positive logits are divided by it, negative ones multiplied.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 or a positive number, got {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top-k must be 0 (off) or positive, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min-p must be between 0 and 1, got {self.min_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UserError(
                f"repetition-penalty must be a positive number, got {self.repetition_penalty}"
            )

    def values(self) -> SamplingValues:
        """What a compiled program takes."""

        def unless(off: float, value: float) -> jax.Array | None:
            return None if value == off else jnp.float32(value)

        penalty = unless(1, self.repetition_penalty)
        if self.temperature == 0:
            return SamplingValues(repetition_penalty=penalty)
        return SamplingValues(
            temperature=jnp.float32(self.temperature),
            top_k=None if self.top_k == 0 else jnp.int32(self.top_k),
            top_p=unless(1, self.top_p),
            min_p=unless(0, self.min_p),
            repetition_penalty=penalty,
        )


class SamplingValues(NamedTuple):
    """`Sampling` as arguments of a compiled program: scalars, None for what is not done.

    Which are None is part of the program, the values are not: another temperature or another k
    compiles nothing anew. Without a temperature the most likely token is taken.
    """

    temperature: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None
    repetition_penalty: jax.Array | None = None


def draw(
    sampling: SamplingValues,
    logits: jax.Array,
    seed: jax.Array,
    position: jax.Array,
    levels: jax.Array,
) -> jax.Array:
    """Draws one token a node. The repetition penalty comes before (see `penalize_repetition`).

    Args:
      sampling: see `SamplingValues`.
      logits: float32 [B, T, V].
      seed: uint32 scalar.
      position: int32 [B, P], absolute positions of the tokens drawn on each level.
      levels: int32 [B, T], the level of each node: its noise is that of `position[level]`.

    Returns:
      int32 [B, T].
    """
    chex.assert_shape(levels, logits.shape[:2])
    chex.assert_type(logits, jnp.float32)
    if sampling.temperature is None:
        return _argmax(logits)
    logits = filter_logits(sampling, logits / sampling.temperature)
    noise = gumbel_noise(seed, position, logits.shape[-1])
    noise = jnp.take_along_axis(noise, levels[:, :, None], axis=1)
    return _argmax(logits + noise)


def penalize_repetition(penalty: jax.Array, logits: jax.Array, known: jax.Array) -> jax.Array:
    """Makes the tokens marked in `known`, bool [..., V] like the logits, less likely."""
    lowered = jnp.where(logits < 0, logits * penalty, logits / penalty)
    return jnp.where(known, lowered, logits)


def mark(seen: jax.Array, tokens: jax.Array) -> jax.Array:
    """Marks tokens, int32 [..., n], in bool [..., V]; -1 is none."""
    if seen.ndim > 1:
        return jax.vmap(mark)(seen, tokens)
    # An index beyond the end is dropped; -1 would be the last.
    return seen.at[jnp.where(tokens < 0, seen.shape[0], tokens)].set(True, mode="drop")


def filter_logits(sampling: SamplingValues, logits: jax.Array) -> jax.Array:
    """Sets what top-k, top-p and min-p leave out to -inf; logits are already divided by the
    temperature."""
    if sampling.top_k is not None:
        logits = jnp.where(_among_first(logits, sampling.top_k), logits, -jnp.inf)
    if sampling.top_p is not None:
        probability = jax.nn.softmax(logits, axis=-1)
        least = _nucleus_threshold(probability, sampling.top_p)
        logits = jnp.where(probability >= least, logits, -jnp.inf)
    if sampling.min_p is not None:
        probability = jax.nn.softmax(logits, axis=-1)
        least = sampling.min_p * jnp.max(probability, axis=-1, keepdims=True)
        logits = jnp.where(probability >= least, logits, -jnp.inf)
    return logits


def _argmax(x: jax.Array) -> jax.Array:
    """The first index of the last axis's maximum, int32.

    Two plain reductions: XLA's CPU code for `jnp.argmax` takes four times as long.
    """
    index = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    top = jnp.max(x, axis=-1, keepdims=True)
    return jnp.min(jnp.where(x == top, index, x.shape[-1] - 1), axis=-1)


def _among_first(logits: jax.Array, k: jax.Array) -> jax.Array:
    """Which logits are at least the k-th largest: bool, of the same shape.

    The threshold is found bit by bit, in integers ordered as the floats are, so that k need not be
    known to the compiler: 32 counts cost less than a sort of the vocabulary.
    """
    bits = jax.lax.bitcast_convert_type(logits, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    order = jnp.where(bits >= sign, ~bits, bits | sign)

    def try_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        higher = threshold | (sign >> i.astype(jnp.uint32))
        enough = jnp.sum(order >= higher, axis=-1, keepdims=True, dtype=jnp.int32) >= k
        return jnp.where(enough, higher, threshold)

    none = jnp.zeros((*logits.shape[:-1], 1), jnp.uint32)
    return order >= jax.lax.fori_loop(0, 32, try_bit, none)


def _nucleus_threshold(probability: jax.Array, top_p: jax.Array) -> jax.Array:
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


def gumbel_noise(seed: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """Gumbel noise float32 [B, P, V]; row b's depends on (seed, b, position) alone."""

    def row(index, positions):
        key = jax.random.fold_in(jax.random.key(seed), index)
        keys = jax.vmap(lambda p: jax.random.fold_in(key, p))(positions)
        return jax.vmap(lambda k: jax.random.gumbel(k, (vocab,), jnp.float32))(keys)

    return jax.vmap(row)(jnp.arange(position.shape[0], dtype=jnp.int32), position)
