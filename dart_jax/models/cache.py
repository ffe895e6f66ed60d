"""KV caches of fixed capacity, with a separate length per sequence.

Rows beyond a sequence's length hold garbage; readers mask them and writers overwrite them.
Rejecting drafted tokens is therefore free: only accepted rows are counted in the length.
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
    """Returns an empty cache of `capacity` rows."""
    shape = (batch, kv_heads, capacity, head_dim)
    return tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(layers))


def append(cache: KVCache, rows: KVCache, index: jax.Array, length: jax.Array) -> KVCache:
    """Writes selected new rows after each sequence: the compaction after a verification.

    Args:
      cache: donated by callers; its capacity must be at least `length + P`, since
        `dynamic_update_slice` would otherwise shift the write.
      rows: keys and values of the T rows just computed, [B, K, T, h] per layer.
      index: int32 [B, P], which of the T rows to keep, in order. A sequence that keeps fewer than
        P repeats any valid row: the surplus is written beyond its new length.
      length: int32 [B], rows already in the cache.
    """
    chex.assert_shape(length, index.shape[:1])

    def keep(new: jax.Array) -> jax.Array:
        return jnp.take_along_axis(new, index[:, None, :, None], axis=2)

    return extend(cache, jax.tree.map(keep, rows), length)


def cache_from(rows: KVCache, capacity: int) -> KVCache:
    """Returns a cache of `capacity` rows that starts with `rows`, [B, K, T, h] per layer."""
    k, _ = rows[0]
    empty = init_cache(len(rows), k.shape[0], k.shape[1], capacity, k.shape[3], k.dtype)
    return jax.tree.map(lambda old, new: old.at[:, :, : new.shape[2]].set(new), empty, rows)


def extend(cache: KVCache, rows: KVCache, length: jax.Array) -> KVCache:
    """Writes all new rows after each sequence.

    Args:
      cache: donated by callers; its capacity must be at least `length + T`, since
        `dynamic_update_slice` would otherwise shift the write.
      rows: keys and values of T new rows, [B, K, T, h] per layer.
      length: int32 [B], rows already in the cache.
    """
    chex.assert_equal_shape_prefix(jax.tree.leaves((cache, rows)), 2)

    def write(old: jax.Array, new: jax.Array, length: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(old, new, (0, length, 0))

    return jax.tree.map(lambda old, new: jax.vmap(write)(old, new, length), cache, rows)


def first_rows(cache: KVCache | None, count: int) -> KVCache | None:
    """Returns a cache's first rows, to attend to; None for no rows or no cache."""
    if cache is None or count == 0:
        return None
    return jax.tree.map(lambda rows: rows[:, :, :count], cache)


def keep_rows(cache: KVCache | None, rows: KVCache, length: jax.Array, capacity: int) -> KVCache:
    """Writes the rows of a prompt after those before them; None for a cache starts a new one.

    Args:
      cache: donated by callers, and read by all but the last layer to compute `rows`. If the last
        layer reads its cache too, let `length` wait for its result.
      rows: keys and values of T rows, [B, K, T, h] per layer.
      length: int32 [B], rows already in the cache.
      capacity: rows of a new cache, at least `length + T`.
    """
    if cache is None:
        return cache_from(rows, capacity)
    last, _ = rows[-1]
    computed = jnp.isnan(last.ravel()[:1]).astype(jnp.int32)
    return extend(cache, rows, wait_for(computed, length))


def wait_for(result: jax.Array, length: jax.Array) -> jax.Array:
    """Returns `length` unchanged, but makes it depend on `result`, which must be integers >= 0.

    XLA writes to a cache in place only if the write is ordered after every read of the cache;
    otherwise it copies the cache in every step.
    """
    return length + jnp.minimum(result.ravel()[0], 0)


def length_mask(capacity: int, length: jax.Array) -> jax.Array:
    """Returns the mask [B, 1, S] of valid cached rows, which all new rows may attend to."""
    return (jnp.arange(capacity, dtype=jnp.int32)[None] < length[:, None])[:, None]
