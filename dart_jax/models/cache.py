"""KV caches of fixed capacity, with a separate length per sequence; in one piece or in pages.

Rows beyond a sequence's length hold garbage; readers mask them and writers overwrite them.
Rejecting drafted tokens is therefore free: only accepted rows are counted in the length.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar, cast

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
    """Returns a cache's layers and its table of pages, None if it is in one piece."""
    return cache if isinstance(cache, PagedCache) else (cache, None)


def with_layers(cache: AnyCache, layers: KVCache) -> AnyCache:
    """Returns the cache with other layers."""
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


def first_rows(cache: AnyCache, count: int) -> AnyCache | None:
    """Returns a cache's first rows, to attend to, or None for no rows. Of a cache in pages these
    are the pages that have them."""
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
