"""KV caches of fixed capacity, with a separate length per sequence; in one piece or in pages.

Rows beyond a sequence's length hold garbage; readers mask them and writers overwrite them.
Rejecting drafted tokens is therefore free: only accepted rows are counted in the length.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar, cast

import chex
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

# Per layer: keys and values, each [B, K, S, h].
KVCache = tuple[tuple[jax.Array, jax.Array], ...]


class PagedCache(NamedTuple):
    """A cache whose sequences share pools of pages.

    Row s of sequence b is row s % R of page `pages[b, s // R]`, where R is the rows of a page. Rows
    of missing pages read as zeros, and what is written to them, or beyond the table, is dropped.
    Sequences may share pages that are only read.

    Attributes:
      layers: pools of pages: per layer, keys and values, each [P, K, R, h].
      pages: int32 [B, n], the pages of each sequence, in order; -1 where there is none.
    """

    layers: KVCache
    pages: jax.Array


Cache = KVCache | PagedCache
AnyCache = TypeVar("AnyCache", bound=Cache)


def parts(cache: Cache) -> tuple[KVCache, jax.Array | None]:
    """A cache's layers and its table of pages, None if it is in one piece."""
    return cache if isinstance(cache, PagedCache) else (cache, None)


def with_layers(cache: AnyCache, layers: KVCache) -> AnyCache:
    """The cache with other layers."""
    new = cache._replace(layers=layers) if isinstance(cache, PagedCache) else layers
    return cast(AnyCache, new)


def capacity_of(cache: Cache) -> int:
    """Rows that a sequence may have."""
    layers, pages = parts(cache)
    rows = layers[0][0].shape[2]
    return rows if pages is None else pages.shape[1] * rows


def init_cache(
    layers: int, batch: int, kv_heads: int, capacity: int, head_dim: int, dtype: DTypeLike
) -> KVCache:
    """Returns an empty cache of `capacity` rows."""
    shape = (batch, kv_heads, capacity, head_dim)
    return tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(layers))


def append(cache: AnyCache, rows: KVCache, index: jax.Array, length: jax.Array) -> AnyCache:
    """Writes selected new rows after each sequence: the compaction after a verification.

    Args:
      cache: donated by callers; see `extend`.
      rows: keys and values of the T rows just computed, [B, K, T, h] per layer.
      index: int32 [B, P], which of the T rows to keep, in order. A sequence that keeps fewer than
        P repeats any valid row: the surplus is written beyond its new length.
      length: int32 [B], rows already in the cache.
    """
    chex.assert_shape(length, index.shape[:1])

    def keep(new: jax.Array) -> jax.Array:
        return jnp.take_along_axis(new, index[:, None, :, None], axis=2)

    return extend(cache, jax.tree.map(keep, rows), length)


def extend(cache: AnyCache, rows: KVCache, length: jax.Array) -> AnyCache:
    """Writes all new rows after each sequence.

    Args:
      cache: donated by callers. In one piece, its capacity must be at least `length + T`, since
        `dynamic_update_slice` would otherwise shift the write.
      rows: keys and values of T new rows, [B, K, T, h] per layer.
      length: int32 [B], rows already in the cache.
    """
    layers, pages = parts(cache)
    if pages is not None:
        return with_layers(cache, _extend_pages(layers, pages, rows, length))
    chex.assert_equal_shape_prefix(jax.tree.leaves((layers, rows)), 2)

    def write(old: jax.Array, new: jax.Array, length: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(old, new, (0, length, 0))

    layers = jax.tree.map(lambda old, new: jax.vmap(write)(old, new, length), layers, rows)
    return with_layers(cache, layers)


def _extend_pages(layers: KVCache, pages: jax.Array, rows: KVCache, length: jax.Array) -> KVCache:
    new, _ = rows[0]
    pool, _ = layers[0]
    count, heads, size, _ = pool.shape
    chex.assert_equal_shape_prefix([length, pages, new], 1)
    at = length[:, None] + jnp.arange(new.shape[2], dtype=jnp.int32)[None]
    page = jnp.take_along_axis(pages, at // size, axis=1, mode="fill", fill_value=-1)
    page = jnp.where(page < 0, count, page)  # beyond the pool, as -1 would be its last page
    page, place = page[:, None], (at % size)[:, None]
    head = jnp.arange(heads, dtype=jnp.int32)[None, :, None]

    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        # One row of one head at a time: to write all heads of a row at once, a TPU's compiler would
        # lay the pool out anew, a copy.
        return old.at[page, head, place].set(new, mode="drop", unique_indices=True)

    return jax.tree.map(write, layers, rows)


def first_rows(cache: AnyCache, count: int) -> AnyCache | None:
    """Returns a cache's first rows, to attend to; None for no rows. Of a cache in pages these are
    the pages that have them."""
    if count == 0:
        return None
    if isinstance(cache, PagedCache):
        columns = -(-count // cache.layers[0][0].shape[2])
        return cast(AnyCache, cache._replace(pages=cache.pages[:, :columns]))
    return jax.tree.map(lambda rows: rows[:, :, :count], cache)


def order_after(result: jax.Array, length: jax.Array) -> jax.Array:
    """Returns `length` unchanged, but makes it depend on `result`, which must be integers >= 0.

    XLA writes to a cache in place only if the write is ordered after every read of the cache;
    otherwise it copies the cache in every step.
    """
    return length + jnp.minimum(result.ravel()[0], 0)


def length_mask(capacity: int, length: jax.Array) -> jax.Array:
    """Returns the mask [B, 1, S] of valid cached rows, which all new rows may attend to."""
    return (jnp.arange(capacity, dtype=jnp.int32)[None] < length[:, None])[:, None]
