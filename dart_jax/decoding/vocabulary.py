"""Reductions over the vocabulary, the last axis: the largest, a sum; exactly, without a sort.

Each device may have a part of the axis.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp

from dart_jax.models.cpu import available, largest, used_rows
from dart_jax.models.sharding import collectives
from dart_jax.models.sharding.collectives import local_shard, shard_offset

_MOST_ENTRIES = 64  # that the C++ core keeps in order while it passes over a row


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The vocabulary's axis. All devices have the results, which are small for each row.

    Attributes:
      shards: devices, each of which has a part of the axis, in order.
    """

    shards: int = 1

    def local_shard(self, x: jax.Array) -> jax.Array:
        """Returns a device's part of [..., V], which all have."""
        return x if self.shards == 1 else local_shard(x, self.shards)

    def largest(self, x: jax.Array) -> jax.Array:
        """Returns the largest of each row, [..., 1]."""
        top = jnp.max(x, axis=-1, keepdims=True)
        return top if self.shards == 1 else collectives.largest(top)

    def total(self, x: jax.Array) -> jax.Array:
        """Returns the sum of each row, [..., 1], in the dtype of x."""
        sum_ = jnp.sum(x, axis=-1, keepdims=True, dtype=x.dtype)
        return sum_ if self.shards == 1 else collectives.total(sum_)

    def softmax(self, x: jax.Array) -> jax.Array:
        """Returns the probabilities of logits."""
        odds = jnp.exp(x - self.largest(x))
        return odds / self.total(odds)

    def log_softmax(self, x: jax.Array) -> jax.Array:
        """Returns the logarithms of the probabilities of logits."""
        below = x - self.largest(x)
        return below - jnp.log(self.total(jnp.exp(below)))

    def at(self, x: jax.Array, token: jax.Array) -> jax.Array:
        """Returns the numbers of tokens [...] in [..., V], [..., 1]; a negative one is token 0."""
        token = jnp.maximum(token, 0)[..., None]
        if self.shards == 1:
            return jnp.take_along_axis(x, token, axis=-1)
        at = token - shard_offset(x.shape[-1])
        own = jnp.take_along_axis(x, at, axis=-1, mode="fill", fill_value=0)
        return collectives.total(jnp.where(at < 0, 0, own))

    def top(self, x: jax.Array, count: int) -> jax.Array:
        """Returns the largest `count` numbers of each row, descending; fewer if there are fewer."""
        most, _ = exact_top_k(x, min(count, x.shape[-1]))
        if self.shards == 1:
            return most
        every = collectives.joined(most)
        return exact_top_k(every, min(count, every.shape[-1]))[0]

    def top_k(self, x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        """Returns the largest `count` of each row of float32 numbers, descending, and where they
        are, int32; of equal ones the first. Fewer if there are fewer."""
        most, at = exact_top_k(x, min(count, x.shape[-1]))
        if self.shards == 1 or count == 0:
            return most, at
        every, places = _joined(most, at + shard_offset(x.shape[-1]))
        best, chosen = exact_top_k(every, min(count, every.shape[-1]))
        return best, jnp.take_along_axis(places, chosen, axis=-1)

    def argmax(self, x: jax.Array) -> jax.Array:
        """Returns the place of the largest number of each row, int32; the first one wins ties; -1
        if there is a NaN."""
        at = _argmax(x)
        if self.shards == 1:
            return at
        top = jnp.max(x, axis=-1, keepdims=True)
        tops, places = _joined(top, at[..., None] + shard_offset(x.shape[-1]))
        best = jnp.argmax(tops, axis=-1, keepdims=True)  # of NaN, too, and the first one wins ties
        chosen = jnp.take_along_axis(places, best, axis=-1)[..., 0]
        return jnp.where(jnp.any(jnp.isnan(tops), axis=-1), -1, chosen)


WHOLE = Vocabulary()


def _joined(x: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
    """float32 numbers [..., n] of each of m devices and their places, int32, in one exchange ->
    [..., m n] on all."""
    bits, places = collectives.joined(
        jnp.stack([jax.lax.bitcast_convert_type(x, jnp.int32), places])
    )
    return jax.lax.bitcast_convert_type(bits, jnp.float32), places


def _argmax(x: jax.Array) -> jax.Array:
    """See `Vocabulary.argmax`."""
    if not available():
        return _argmax_in_one(x)
    return jax.lax.platform_dependent(
        x, used_rows(), cpu=_argmax_by_core, default=lambda x, _: _argmax_in_one(x)
    )


def _argmax_by_core(x: jax.Array, used: jax.Array) -> jax.Array:
    """One pass by the C++ core."""
    return first_of(*largest(x, 1, used))


def first_of(most: jax.Array, at: jax.Array) -> jax.Array:
    """Returns the index of the first of the largest numbers of rows; -1 for rows that hold NaN.

    Args:
      most: float32 [..., k], as `models.cpu.largest` orders them.
      at: int32 [..., k], where they are.
    """
    return jnp.where(jnp.isnan(most[..., 0]), -1, at[..., 0])


def _argmax_in_one(x: jax.Array) -> jax.Array:
    """One reduction, which reads the array once; it takes a NaN for the largest."""
    at = jax.lax.argmax(x, x.ndim - 1, jnp.int32)
    top = jnp.take_along_axis(x, at[..., None], axis=-1)[..., 0]
    return jnp.where(jnp.isnan(top), -1, at)


def exact_top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Returns the k largest entries of every row, largest first; of equal ones the first.

    The result of `jax.lax.top_k`, which on accelerators sorts whole rows. On CPUs the C++ core
    passes over them once. Elsewhere rows are split into blocks, and only the k blocks with the
    largest maxima can hold the answer: an entry of any other block is preceded by these k maxima,
    for among equal maxima the first blocks are taken. So about 2 sqrt(k V) entries of V are sorted.

    Args:
      x: floats [..., V].
      k: how many, 0 to V.

    Returns:
      Values [..., k] and their indices, int32.
    """
    blocks = partial(_in_blocks, k=k)
    if k > _MOST_ENTRIES or x.dtype != jnp.float32 or not available():
        return blocks(x)
    return jax.lax.platform_dependent(x, cpu=partial(largest, k=k), default=blocks)


def _in_blocks(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    size = x.shape[-1]
    if k == 1:
        at = jax.lax.argmax(x, x.ndim - 1, jnp.int32)[..., None]
        return jnp.take_along_axis(x, at, axis=-1), at
    if k == 0 or size < 256 * k:  # too short to gain anything
        top, at = jax.lax.top_k(x, k)
        return top, at
    # Otherwise the blocks' layout becomes that of the draft head, and a TPU copies the head, 1.2 GB
    # for a vocabulary of 152,000, in every step.
    x = jax.lax.optimization_barrier(x)
    width = 2 ** round(math.log2(math.sqrt(size / k)))
    blocks = math.ceil(size / width)
    # What is added comes last in every order, so it is never among the k.
    padding = [(0, 0)] * (x.ndim - 1) + [(0, blocks * width - size)]
    x = jnp.pad(x, padding, constant_values=-jnp.inf)
    x = x.reshape(*x.shape[:-1], blocks, width)
    _, chosen = jax.lax.top_k(jnp.max(x, axis=-1), k)
    chosen = jnp.sort(chosen, axis=-1)  # so that of equal entries the first stays the first
    entries = jnp.take_along_axis(x, chosen[..., None], axis=-2)
    top, at = jax.lax.top_k(entries.reshape(*chosen.shape[:-1], k * width), k)
    block = jnp.take_along_axis(chosen, at // width, axis=-1)
    return top, block * width + at % width
