"""Inputs of attention: queries, keys and values in several arrays, and masks; and attention to them
in plain JAX, on every platform and with gradients.

Axis letters: B batch, T new rows, S keys, H query heads, K key/value heads, G = H / K query heads
per key/value head, h head dim.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
      first: int32 [B, T], the first row that each new row sees, with a sliding window. None if they
        see all.
      pages: int32 [B, n], where rows are in pools of pages (see `PagedCache`): S = n * R. None if
        they are in one piece.
    """

    k: jax.Array
    v: jax.Array
    length: jax.Array
    first: jax.Array | None = None
    pages: jax.Array | None = None

    @classmethod
    def of(
        cls,
        cache: Cache | None,
        layer: int,
        length: jax.Array | None,
        first: jax.Array | None = None,
    ) -> Prefix | None:
        """Returns the rows of a cache's layer, or None without a cache."""
        if cache is None or length is None:
            return None
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

    def in_one_piece(self, finite: bool = True) -> Prefix:
        """Returns the same rows without pages, [B, K, S, h]: what the table names is copied, and
        what is not filled is 0. The only page of a pool is taken as it is, unless it may hold
        numbers that are not `finite`, even where it is not filled."""
        if self.pages is None:
            return self
        count, kv_heads, size, h = self.k.shape
        b, n = self.pages.shape
        if finite and count == b == n == 1:
            return self._replace(pages=None)
        page = jnp.where(self.pages < 0, count, self.pages)  # beyond the pool, which reads as 0
        # A page may hold what another sequence has left, even NaN.
        filled = length_mask(n * size, self.length).reshape(b, n, 1, size, 1)

        def rows(pool: jax.Array) -> jax.Array:
            x = jnp.take(pool, page, axis=0, mode="fill", fill_value=0)
            x = jnp.where(filled, x, 0)
            return x.swapaxes(1, 2).reshape(b, kv_heads, n * size, h)

        return Prefix(rows(self.k), rows(self.v), self.length, self.first)


def window_start(window: int | None, positions: jax.Array) -> jax.Array | None:
    """Returns the first position that rows see through a sliding window, int32 [B, T].

    Args:
      window: positions that a row sees, its own included. None for all, which returns None.
      positions: int32 [B, T], of the rows.
    """
    return None if window is None else jnp.maximum(positions - window + 1, 0)


def windowed(mask: jax.Array, first: jax.Array | None, positions: jax.Array) -> jax.Array:
    """Masks the keys that are before rows' windows, too: bool [B, T, S].

    Args:
      mask: bool, broadcastable to [B, T, S].
      first: int32 [B, T], from `window_start`, or None to leave the mask as it is.
      positions: int32 [B, S], of the keys.
    """
    return mask if first is None else mask & (positions[:, None] >= first[:, :, None])


class Scoring(NamedTuple):
    """Options of the scores, which are computed from products of queries and keys.

    Attributes:
      scale: factor on the products, by default h ** -0.5.
      cap: softcap, if any: scores become cap * tanh(score / cap) before masking.
    """

    scale: float | None = None
    cap: float | None = None

    def factor(self, head_dim: int) -> float:
        """Returns the factor on the products for heads of this size."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def of(self, products: jax.Array, head_dim: int) -> jax.Array:
        """Returns the scores of products, before masking."""
        score = products * self.factor(head_dim)
        return score if self.cap is None else softcap(score, self.cap)


PLAIN = Scoring()


def fits_kernels(head_dim: int) -> bool:
    """True if the GPU kernels are made for heads of this size: a power of two, 16 to 256."""
    return 16 <= head_dim <= 256 and head_dim & (head_dim - 1) == 0


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """[B, T, heads * h] -> [B, heads, T, h]."""
    b, t, _ = x.shape
    return x.reshape(b, t, heads, -1).swapaxes(1, 2)


def softcap(x: jax.Array, cap: float) -> jax.Array:
    """Bounds values smoothly to -cap .. cap: cap * tanh(x / cap), same shape and dtype."""
    return jnp.tanh(x / cap) * cap


_MAX_SCORE_BYTES = 2**30


def attend_dense(segments: Sequence[Segment], scoring: Scoring = PLAIN) -> jax.Array:
    """Grouped-query attention with a single softmax over the keys of all segments.

    A segment may hold the same queries at other rotary positions. Every row must see at least one
    key. Many rows are processed in chunks, so that the scores stay below 1 GiB; chunks are
    recomputed for gradients.

    Returns:
      [B, T, H * h] in the queries' dtype.
    """
    b, heads, t, _ = segments[0].q.shape
    keys = sum(segment.k.shape[2] for segment in segments)
    rows = max(1, _MAX_SCORE_BYTES // (4 * b * heads * keys))
    if rows >= t:
        return _attend(segments, scoring)

    def chunk(start: jax.Array | int, size: int) -> jax.Array:
        def cut(x: jax.Array, axis: int) -> jax.Array:
            broadcast = x.shape[axis] == 1
            return x if broadcast else jax.lax.dynamic_slice_in_dim(x, start, size, axis)

        cuts = [Segment(cut(p.q, 2), p.k, p.v, cut(p.mask, 1)) for p in segments]
        return _attend(cuts, scoring)

    full = t // rows
    starts = jnp.arange(full, dtype=jnp.int32) * rows
    out = jax.lax.map(jax.checkpoint(functools.partial(chunk, size=rows)), starts)
    out = out.swapaxes(0, 1).reshape(b, full * rows, -1)
    rest = t - full * rows
    return jnp.concatenate([out, chunk(full * rows, rest)], axis=1) if rest else out


def _attend(segments: Sequence[Segment], scoring: Scoring) -> jax.Array:
    all_scores = [scores(segment, scoring, i > 0) for i, segment in enumerate(segments)]
    top = functools.reduce(jnp.maximum, [s.max(axis=-1, keepdims=True) for s in all_scores])
    top = jax.lax.stop_gradient(top)
    weights = [jnp.exp(s - top) for s in all_scores]
    total = functools.reduce(jnp.add, [w.sum(axis=-1, keepdims=True) for w in weights])
    out = functools.reduce(
        jnp.add, [weighted_values(w, segment) for w, segment in zip(weights, segments, strict=True)]
    )
    b, heads, t, h = segments[0].q.shape
    out = (out / total).reshape(b, heads, t, h).swapaxes(1, 2)
    return out.reshape(b, t, heads * h).astype(segments[0].q.dtype)


def scores(segment: Segment, scoring: Scoring = PLAIN, keys_first: bool = False) -> jax.Array:
    """Scaled, capped, masked scores, float32 [B, K, G, T, S]. XLA for GPUs would join products
    whose first factors are the same queries, and copy all keys for that, if those of some segments
    were not multiplied with `keys_first`."""
    b, heads, t, h = segment.q.shape
    kv_heads = segment.k.shape[1]
    # Fold the queries that share a key head into the rows of one matrix product.
    q = segment.q.reshape(b, kv_heads, heads // kv_heads * t, h)
    if keys_first:
        score = jnp.einsum("bksh,bkqh->bksq", segment.k, q, preferred_element_type=jnp.float32)
        score = score.swapaxes(2, 3)
    else:
        score = jnp.einsum("bkqh,bksh->bkqs", q, segment.k, preferred_element_type=jnp.float32)
    score = scoring.of(score.reshape(b, kv_heads, heads // kv_heads, t, -1), h)
    return jnp.where(segment.mask[:, None, None], score, -jnp.inf)


def weighted_values(weights: jax.Array, segment: Segment) -> jax.Array:
    """Values summed by their weights, float32 [B, K, G, T, h]."""
    b, kv_heads, groups, t, s = weights.shape
    w = weights.reshape(b, kv_heads, groups * t, s).astype(segment.v.dtype)
    out = jnp.einsum("bkqs,bksh->bkqh", w, segment.v, preferred_element_type=jnp.float32)
    return out.reshape(b, kv_heads, groups, t, -1)
