"""Key/value caches of fixed capacity, with a length of their own per row.

Rows beyond a sequence's length hold garbage; readers mask them and writers overwrite them. So
rejecting drafted tokens costs nothing: only accepted rows are ever counted in the length.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

# Per layer: keys and values, each [B, K, S, h].
KVCache = tuple[tuple[jax.Array, jax.Array], ...]


def init_cache(
    layers: int, batch: int, kv_heads: int, capacity: int, head_dim: int, dtype: DTypeLike
) -> KVCache:
    """An empty cache of `capacity` rows."""
    shape = (batch, kv_heads, capacity, head_dim)
    return tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(layers))


def append(cache: KVCache, rows: KVCache, index: jax.Array, length: jax.Array) -> KVCache:
    """Writes chosen new rows behind each sequence: this is the compaction after a verification.

    Args:
      cache: donated by callers; capacity must reach `length + P`, else the write would shift.
      rows: keys and values of the rows just computed, [B, K, T, h] per layer.
      index: int32 [B, P], which of the T rows to keep, in order. A sequence that keeps fewer than
        P repeats any valid row: the surplus lands beyond its new length.
      length: int32 [B], rows already in the cache.
    """

    chex.assert_shape(length, index.shape[:1])

    def keep(new: jax.Array) -> jax.Array:
        return jnp.take_along_axis(new, index[:, None, :, None], axis=2)

    return extend(cache, jax.tree.map(keep, rows), length)


def cache_from(rows: KVCache, capacity: int) -> KVCache:
    """A cache of `capacity` rows that starts with the first ones, [B, K, T, h] per layer."""
    k, _ = rows[0]
    empty = init_cache(len(rows), k.shape[0], k.shape[1], capacity, k.shape[3], k.dtype)
    return jax.tree.map(lambda old, new: old.at[:, :, : new.shape[2]].set(new), empty, rows)


def extend(cache: KVCache, rows: KVCache, length: jax.Array) -> KVCache:
    """Writes all new rows behind each sequence.

    Args:
      cache: donated by callers; capacity must reach `length + T`, else the write would shift.
      rows: keys and values of T new rows, [B, K, T, h] per layer.
      length: int32 [B], rows already in the cache.
    """
    chex.assert_equal_shape_prefix(jax.tree.leaves((cache, rows)), 2)

    def write(old: jax.Array, new: jax.Array, length: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(old, new, (0, length, 0))

    return jax.tree.map(lambda old, new: jax.vmap(write)(old, new, length), cache, rows)


def wait_for(result: jax.Array, length: jax.Array) -> jax.Array:
    """`length`, known only once `result` is, some integers that are never negative.

    XLA does not write to a cache in place unless something orders the write behind what reads it;
    else it copies the cache, every step.
    """
    return length + jnp.minimum(result.ravel()[0], 0)


def length_mask(capacity: int, length: jax.Array) -> jax.Array:
    """Mask [B, 1, S] of the cached rows that every new row of a sequence may attend to."""
    return (jnp.arange(capacity, dtype=jnp.int32)[None] < length[:, None])[:, None]
