"""Draws tokens from logits: temperature, top-k, top-p, min-p, and noise."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dart_jax.decoding.vocabulary import WHOLE, Vocabulary, first_of
from dart_jax.models.cpu import available, or_nothing, used_rows

# Up to this top-k the largest logits are sorted, for any k: one program serves all.
MOST_SORTED = 128


class SamplingValues(NamedTuple):
    """`Sampling` as arguments of a compiled program: scalars, or a value per row, [B]. None for
    steps that are skipped.

    Which fields are None is compiled in, the values are not: another temperature or k does not
    recompile. Without a temperature decoding is greedy; so are rows with temperature 0, to which
    values per row may say so. Values that change nothing are a top-k of 0, an infinite top-p, a
    min-p of 0, a repetition penalty of 1 and other penalties of 0.

    Attributes:
      presence_penalty: subtracted from the logits of tokens that the new text has.
      frequency_penalty: the same, times how often it has them.
    """

    temperature: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None
    repetition_penalty: jax.Array | None = None
    presence_penalty: jax.Array | None = None
    frequency_penalty: jax.Array | None = None


def per_row(value: jax.Array, dims: int) -> jax.Array:
    """Reshapes a scalar or values [B] such that they apply to the rows of an array [B, ...] of
    `dims` dimensions."""
    return value.reshape(value.shape + (1,) * (dims - value.ndim))


class Noise(NamedTuple):
    """The noise of draws at consecutive positions, one a level.

    Attributes:
      keys: uint32 [B, 2], see `row_keys`.
      first: int32 [B], the position of level 0.
      table: float32 [B, P, V], `gumbel_noise` at P levels. None where the C++ core draws, which
        makes the noise of tokens that may be drawn.
    """

    keys: jax.Array
    first: jax.Array
    table: jax.Array | None = None

    def at(self, level: jax.Array) -> Noise:
        """Returns the noise of one level, int32 scalar, alone."""
        table = self.table
        if table is not None:
            table = jax.lax.dynamic_slice_in_dim(table, level, 1, axis=1)
        return Noise(self.keys, self.first + level, table)

    def made(self, count: int, vocab: int) -> Noise:
        """Returns the same with a table, of `count` levels at least."""
        if self.table is not None:
            return self
        position = self.first[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        return self._replace(table=gumbel_noise(self.keys, position, vocab))


def draw(
    sampling: SamplingValues,
    logits: jax.Array,
    noise: Noise | None,
    levels: jax.Array,
    vocabulary: Vocabulary = WHOLE,
) -> jax.Array:
    """Draws one token per node, from logits with the repetition penalty (`penalize_repetition`).

    Args:
      sampling: see `SamplingValues`.
      logits: float32 [B, T, V].
      noise: of the positions drawn at each level; not used in greedy decoding.
      levels: int32 [B, T], the level of each node.
      vocabulary: of whose logits each device may have a part, [B, T, V / shards].

    Returns:
      int32 [B, T]; -1 where the logits are NaN.
    """
    chex.assert_shape(levels, logits.shape[:2])
    chex.assert_type(logits, jnp.float32)
    if sampling.temperature is None:
        return vocabulary.argmax(logits)
    assert noise is not None
    if noise.table is None:
        return first_of(*most_noisy(sampling, logits, noise, levels, 1))
    table = vocabulary.local_shard(noise.table)
    logits = _scale(sampling, logits, vocabulary)
    rows = jnp.take_along_axis(table, levels[:, :, None], axis=1)
    noisy = logits + jnp.where(is_greedy(sampling, 3), 0, rows)
    logits = filter_logits(SamplingValues(top_k=sampling.top_k), logits, vocabulary)
    # Min-p before top-p: what this leaves has the same ratios.
    kept = filter_logits(SamplingValues(min_p=sampling.min_p), logits, vocabulary)
    noisy = jnp.where(kept == -jnp.inf, kept, noisy)
    if sampling.top_p is None:
        return vocabulary.argmax(noisy)
    return _draw_from_nucleus(vocabulary.softmax(logits), noisy, sampling.top_p, vocabulary)


def scale_and_filter(
    sampling: SamplingValues, logits: jax.Array, vocabulary: Vocabulary = WHOLE
) -> jax.Array:
    """Divides logits by the temperature, up to a constant, and filters them."""
    return filter_logits(sampling, _scale(sampling, logits, vocabulary), vocabulary)


def filter_logits(
    sampling: SamplingValues, logits: jax.Array, vocabulary: Vocabulary = WHOLE
) -> jax.Array:
    """Sets logits excluded by top-k, top-p or min-p to -inf; the logits are already divided by the
    temperature."""
    if sampling.top_k is not None:
        kept = _top_k_mask(logits, sampling.top_k, vocabulary)
        logits = jnp.where(kept, logits, -jnp.inf)
    if sampling.top_p is not None:
        probability = vocabulary.softmax(logits)
        threshold = _nucleus_threshold(probability, sampling.top_p, vocabulary)
        logits = jnp.where(probability < threshold, -jnp.inf, logits)  # keeps NaN
    if sampling.min_p is not None:
        probability = vocabulary.softmax(logits)
        least = per_row(sampling.min_p, probability.ndim) * vocabulary.largest(probability)
        logits = jnp.where(probability < least, -jnp.inf, logits)
    return logits


def is_greedy(sampling: SamplingValues, dims: int) -> jax.Array:
    """Rows that are decoded greedily, bool, as `per_row`, where there is a temperature."""
    assert sampling.temperature is not None
    return per_row(sampling.temperature, dims) == 0


def divided(sampling: SamplingValues, x: jax.Array) -> jax.Array:
    """Divides [B, ...] by the temperature, where there is one."""
    assert sampling.temperature is not None
    temperature = per_row(sampling.temperature, x.ndim)
    return x / jnp.where(is_greedy(sampling, x.ndim), 1, temperature)


def inverse_temperature(sampling: SamplingValues, rows: int) -> jax.Array:
    """1 / temperature of each row, float32 [B]; 0 where it is decoded greedily."""
    if sampling.temperature is None:
        return jnp.zeros((rows,), jnp.float32)
    scale = divided(sampling, jnp.ones((rows, 1), jnp.float32))
    return jnp.where(is_greedy(sampling, 2), 0, scale)[:, 0]


def packed_draws(sampling: SamplingValues, keys: jax.Array, first: jax.Array) -> jax.Array:
    """Packs how rows draw for the C++ core, int32 [B, 4]: the key, uint32 [B, 2], the first
    position, int32 [B], and the bits of `inverse_temperature`."""
    scale = inverse_temperature(sampling, len(first))[:, None]
    key, bits = (jax.lax.bitcast_convert_type(x, jnp.int32) for x in (keys, scale))
    return jnp.concatenate([key, first[:, None], bits], axis=1)


def _scale(
    sampling: SamplingValues, logits: jax.Array, vocabulary: Vocabulary = WHOLE
) -> jax.Array:
    """Divides logits by the temperature, up to a constant.

    The largest is subtracted first: divided by a very small temperature, all would overflow.
    """
    return divided(sampling, logits - vocabulary.largest(logits))


def _draw_from_nucleus(
    probability: jax.Array, noisy: jax.Array, top_p: jax.Array, vocabulary: Vocabulary
) -> jax.Array:
    """Returns the argmax of the noisy logits that top-p keeps, without finding the threshold.

    The largest sum over all tokens is the answer if its token is kept, which it is unless the
    likelier ones reach `top_p`. Otherwise neither it nor any token less likely is kept, and the
    largest sum over the likelier ones is tried next. As tokens are drawn with their probabilities,
    about one row in 1 / (1 - p) needs a second try. Such rows are tried again a few at a time.

    Args:
      probability: float32 [B, T, V].
      noisy: float32 [B, T, V], logits plus noise; -inf for what other filters leave out.
      top_p: float32 scalar or [B].
      vocabulary: of which both may be a part.

    Returns:
      int32 [B, T].
    """
    *shape, size = probability.shape
    top_p = jnp.broadcast_to(per_row(top_p, 2), shape).ravel()
    probability, noisy = (x.reshape(-1, size) for x in (probability, noisy))
    tried = max(1, len(noisy) // 16)

    def likelier(probability: jax.Array, token: jax.Array) -> jax.Array:
        return probability > vocabulary.at(probability, token)

    def cut(probability: jax.Array, token: jax.Array, top_p: jax.Array) -> jax.Array:
        more = likelier(probability, token)
        mass = vocabulary.total(jnp.where(more, probability, 0.0))[:, 0]
        return (mass >= top_p) & (token >= 0)

    def try_again(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        token, rejected = state
        (rows,) = jnp.nonzero(rejected, size=tried, fill_value=len(rejected))
        own, mass = (jnp.take(x, rows, axis=0, mode="clip") for x in (probability, top_p))
        above = likelier(own, jnp.take(token, rows, mode="clip"))
        left = jnp.where(above, jnp.take(noisy, rows, axis=0, mode="clip"), -jnp.inf)
        again = vocabulary.argmax(left)
        token = token.at[rows].set(again, mode="drop")
        return token, rejected.at[rows].set(cut(own, again, mass), mode="drop")

    first = vocabulary.argmax(noisy)
    state = first, cut(probability, first, top_p)
    token, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), try_again, state)
    return token.reshape(shape)


def _top_k_mask(logits: jax.Array, k: jax.Array, vocabulary: Vocabulary = WHOLE) -> jax.Array:
    """Marks logits that are at least the k-th largest: bool, same shape; all of them if k is 0."""
    largest = min(MOST_SORTED, vocabulary.shards * logits.shape[-1])
    k = jnp.broadcast_to(per_row(k, logits.ndim), (*logits.shape[:-1], 1))

    def read() -> jax.Array:
        top = vocabulary.top(logits, largest)
        return jnp.take_along_axis(_ordered(top), jnp.clip(k, 1, largest) - 1, axis=-1)

    # Which way is taken depends on k only, never on the rows; both find the same.
    few = jnp.all(k <= largest)
    threshold = jax.lax.cond(few, read, lambda: _search_threshold(_ordered(logits), k, vocabulary))
    return (k == 0) | (_ordered(logits) >= threshold)


def _ordered(x: jax.Array) -> jax.Array:
    """uint32 with the same order as the floats."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _search_threshold(order: jax.Array, k: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Returns the k-th largest of uint32 [..., V], [..., 1]; 0 if there are fewer.

    Found bit by bit, so that k need not be a compile-time constant: 32 counts cost less than
    sorting the vocabulary.
    """
    sign = jnp.uint32(1 << 31)

    def try_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        higher = threshold | (sign >> i.astype(jnp.uint32))
        enough = vocabulary.total((order >= higher).astype(jnp.int32)) >= k
        return jnp.where(enough, higher, threshold)

    return jax.lax.fori_loop(0, 32, try_bit, jnp.zeros((*order.shape[:-1], 1), jnp.uint32))


def _nucleus_threshold(
    probability: jax.Array, top_p: jax.Array, vocabulary: Vocabulary
) -> jax.Array:
    """Returns the largest threshold such that tokens at least that likely sum to `top_p` or more.

    Bisects over the bits of a float32, which have the same order as the non-negative numbers they
    represent: 30 masked sums cost less than sorting the vocabulary.
    """
    top_p = per_row(top_p, probability.ndim)
    low = jnp.zeros((*probability.shape[:-1], 1), jnp.int32)
    high = jnp.full_like(low, jax.lax.bitcast_convert_type(jnp.float32(1.0), jnp.int32) + 1)

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        value = jax.lax.bitcast_convert_type(middle, jnp.float32)
        mass = vocabulary.total(jnp.where(probability >= value, probability, 0.0))
        enough = mass >= top_p
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
    return jax.lax.bitcast_convert_type(low, jnp.float32)


def most_noisy(
    sampling: SamplingValues,
    logits: jax.Array,
    noise: Noise,
    levels: jax.Array,
    count: int,
    ids: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns the largest of filtered logits plus noise, by the C++ core.

    Args:
      sampling: has a temperature.
      logits: float32 [B, T, size].
      noise: of all levels.
      levels: int32 [B, T].
      count: how many, 0 to size.
      ids: int32 [size], the logits' tokens, or None for the whole vocabulary.

    Returns:
      Float32 and where they are, int32, [B, T, count]; see `models.cpu.largest`. Tokens that the
      filters leave out have -inf, rows that hold NaN become NaN, and rows that `only_rows` leaves
      out are zeros.
    """
    assert sampling.temperature is not None
    (batch, *_), shape = logits.shape, (*logits.shape[:2], count)

    def rows(x: jax.Array | None, dtype: DTypeLike = jnp.float32) -> jax.Array:
        return or_nothing(None if x is None else jnp.broadcast_to(x, (batch,)), dtype)

    keys, first, _ = noise
    types = jax.ShapeDtypeStruct(shape, logits.dtype), jax.ShapeDtypeStruct(shape, jnp.int32)
    values, indices = jax.ffi.ffi_call("dart_draw", types, vmap_method="sequential")(
        logits,
        rows(sampling.temperature),
        keys,
        first,
        levels,
        or_nothing(ids, jnp.int32),
        rows(sampling.top_k, jnp.int32),
        rows(sampling.top_p),
        rows(sampling.min_p),
        used_rows(),
    )
    return values, indices


_RANDOM = "threefry2x32"


def noise_at(
    sampling: SamplingValues, keys: jax.Array, first: jax.Array, count: int, vocab: int, core: bool
) -> Noise | None:
    """Returns the noise of `count` positions from `first`, int32 [B], on, or None in greedy
    decoding. It has no table if the C++ core draws."""
    if sampling.temperature is None:
        return None
    noise = Noise(keys, first)
    return noise if core else noise.made(count, vocab)


def row_keys(seed: jax.Array, row: jax.Array) -> jax.Array:
    """Returns the keys of rows' noise, uint32 [B, 2], from a seed, uint32 scalar or [B], and their
    numbers, int32 [B].

    Always Threefry, even if JAX's default is another: "rbg" gives other numbers to the same key in
    a batch of another size, so plain decoding and a draft tree would not draw alike.
    """

    def key(seed: jax.Array, row: jax.Array) -> jax.Array:
        made = jax.random.fold_in(jax.random.key(seed, impl=_RANDOM), row)
        return jax.random.key_data(made)

    return jax.vmap(key)(jnp.broadcast_to(seed, row.shape), row)


def gumbel_noise(keys: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """Gumbel noise float32 [B, P, V]; row b's depends only on (keys[b], position).

    The same key therefore gives the same token whether a position is reached by plain decoding or
    as a node of a draft tree, and does not depend on the other rows.

    Args:
      keys: uint32 [B, 2], see `row_keys`.
      position: int32 [B, P].
      vocab: V.
    """
    plain = partial(_gumbel_noise, vocab=vocab)
    out = jax.ShapeDtypeStruct((*position.shape, vocab), jnp.float32)
    call = jax.ffi.ffi_call("dart_noise", out, vmap_method="sequential")
    on_cpu = call if available() else plain
    return jax.lax.platform_dependent(keys, position, cpu=on_cpu, default=plain)


def _gumbel_noise(keys: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """By JAX alone."""

    def row(data, positions):
        key = jax.random.wrap_key_data(data, impl=_RANDOM)
        keys = jax.vmap(lambda p: jax.random.fold_in(key, p))(positions)
        return jax.vmap(lambda k: jax.random.gumbel(k, (vocab,), jnp.float32))(keys)

    return jax.vmap(row)(keys, position)
