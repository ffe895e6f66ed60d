"""The largest entries of long rows, exactly, without sorting the rows."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp

from dart_jax.models.cpu.foreign import available
from dart_jax.models.cpu.rows import largest

_MOST_ENTRIES = 64  # that the C++ core keeps in order while it passes over a row


def exact_top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest entries of every row, largest first; of equal ones the first.

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
