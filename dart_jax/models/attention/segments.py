"""Inputs of attention: queries, keys and values in several arrays, and masks.

Axis letters: B batch, T new rows, S keys, H query heads, K key/value heads, G = H / K query heads
per key/value head, h head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.models.cache import Cache, length_mask, parts


class Segment(NamedTuple):
    """Keys and values from one array, with the queries that attend to them.

    Attributes:
      q: queries [B, H, T, h].
      k: keys [B, K, S, h].
      v: values [B, K, S, h].
      mask: bool, broadcastable to [B, T, S]; true where a row sees a key.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: jax.Array


class Prefix(NamedTuple):
    """Cached rows that come before all new rows; row s is at position s.

    Attributes:
      k: keys [B, K, S, h]; in pages, [P, K, R, h].
      v: values, as `k`.
      length: int32 [B], valid rows; every new row sees those from its `first` on.
      first: int32 [B, T], the first row that each new row sees, with a sliding window; None if
        they see all.
      pages: int32 [B, n], where rows are in pools of pages (see `PagedCache`): S = n * R; None if
        they are in one piece.
    """

    k: jax.Array
    v: jax.Array
    length: jax.Array
    first: jax.Array | None = None
    pages: jax.Array | None = None

    @classmethod
    def of(
        cls, cache: Cache, layer: int, length: jax.Array, first: jax.Array | None = None
    ) -> Prefix:
        """The rows of a cache's layer."""
        layers, pages = parts(cache)
        return cls(*layers[layer], length, first, pages)

    @property
    def capacity(self) -> int:
        """Rows that a sequence may have, S."""
        rows = self.k.shape[2]
        return rows if self.pages is None else self.pages.shape[1] * rows

    @property
    def mask(self) -> jax.Array:
        """Bool [B, 1 or T, S]: which rows are seen."""
        valid = length_mask(self.capacity, self.length)
        if self.first is None:
            return valid
        at = jnp.arange(self.capacity, dtype=jnp.int32)[None, None]
        return valid & (at >= self.first[:, :, None])

    def in_one_piece(self) -> Prefix:
        """The same rows without pages, [B, K, S, h]: what the table names is copied, and what is
        not filled is 0."""
        if self.pages is None:
            return self
        count, kv_heads, size, h = self.k.shape
        b, n = self.pages.shape
        page = jnp.where(self.pages < 0, count, self.pages)  # beyond the pool, which reads as 0
        # A page may hold what another sequence has left, even NaN.
        filled = length_mask(n * size, self.length).reshape(b, n, 1, size, 1)

        def rows(pool: jax.Array) -> jax.Array:
            x = jnp.take(pool, page, axis=0, mode="fill", fill_value=0)
            x = jnp.where(filled, x, 0)
            return x.swapaxes(1, 2).reshape(b, kv_heads, n * size, h)

        return Prefix(rows(self.k), rows(self.v), self.length, self.first)


class Scoring(NamedTuple):
    """Options of the scores, which are computed from products of queries and keys.

    Attributes:
      scale: factor on the products; None for h ** -0.5.
      cap: softcap: scores become cap * tanh(score / cap), before masking; None for none.
    """

    scale: float | None = None
    cap: float | None = None

    def factor(self, head_dim: int) -> float:
        """The factor on the products for heads of this size."""
        return head_dim**-0.5 if self.scale is None else self.scale


PLAIN = Scoring()


def fits_kernels(head_dim: int) -> bool:
    """Tells whether the GPU kernels are made for heads of this size: a power of two, 16 to 256."""
    return 16 <= head_dim <= 256 and head_dim & (head_dim - 1) == 0


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """[B, T, heads * h] -> [B, heads, T, h]."""
    b, t, _ = x.shape
    return x.reshape(b, t, heads, -1).swapaxes(1, 2)


def softcap(x: jax.Array, cap: float) -> jax.Array:
    """Bounds values smoothly to -cap .. cap: cap * tanh(x / cap), same shape and dtype."""
    return jnp.tanh(x / cap) * cap
