"""Grouped-query attention over keys and values that lie in several arrays.

Axis letters: B batch, T new rows, S keys, H query heads, K key/value heads, G = H / K query heads
per key/value head, h head dim. Scores and softmax are float32 whatever the weights' dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

_SCORES = 2**30  # bytes


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """[B, T, heads * h] -> [B, heads, T, h]."""
    b, t, _ = x.shape
    return x.reshape(b, t, heads, -1).swapaxes(1, 2)


class Segment(NamedTuple):
    """One array of keys that a row of queries attends to.

    Attributes:
      q: queries [B, H, T, h].
      k: keys [B, K, S, h].
      v: values [B, K, S, h].
      mask: bool, broadcastable to [B, T, S]: what each row sees.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: jax.Array


def attend(segments: Sequence[Segment]) -> jax.Array:
    """Grouped-query attention whose one softmax runs over keys that lie in several arrays.

    So the cache and the new rows need not be copied together, and a segment may hold the same queries
    at other rotary positions. Every row must see at least one key. Many rows are taken some at a
    time, so that their scores stay below a gigabyte, and are computed again for a gradient.

    Returns:
      [B, T, H * h] in the queries' dtype.
    """
    b, heads, t, _ = segments[0].q.shape
    keys = sum(segment.k.shape[2] for segment in segments)
    rows = max(1, _SCORES // (4 * b * heads * keys))
    if rows >= t:
        return _attend(segments)

    def some(start: jax.Array | int, size: int) -> jax.Array:
        def cut(x: jax.Array, axis: int) -> jax.Array:
            whole = x.shape[axis] == 1
            return x if whole else jax.lax.dynamic_slice_in_dim(x, start, size, axis)

        return _attend([Segment(cut(p.q, 2), p.k, p.v, cut(p.mask, 1)) for p in segments])

    full = t // rows
    starts = jnp.arange(full, dtype=jnp.int32) * rows
    out = jax.lax.map(jax.checkpoint(functools.partial(some, size=rows)), starts)
    out = out.swapaxes(0, 1).reshape(b, full * rows, -1)
    rest = t - full * rows
    return jnp.concatenate([out, some(full * rows, rest)], axis=1) if rest else out


def _attend(segments: Sequence[Segment]) -> jax.Array:
    every = [scores(segment) for segment in segments]
    top = functools.reduce(jnp.maximum, [s.max(axis=-1, keepdims=True) for s in every])
    top = jax.lax.stop_gradient(top)
    weights = [jnp.exp(s - top) for s in every]
    total = functools.reduce(jnp.add, [w.sum(axis=-1, keepdims=True) for w in weights])
    out = functools.reduce(
        jnp.add, [weighted_values(w, segment) for w, segment in zip(weights, segments, strict=True)]
    )
    b, heads, t, h = segments[0].q.shape
    out = (out / total).reshape(b, heads, t, h).swapaxes(1, 2)
    return out.reshape(b, t, heads * h).astype(segments[0].q.dtype)


def scores(segment: Segment) -> jax.Array:
    """Scaled, masked scores, float32 [B, K, G, T, S]."""
    b, heads, t, h = segment.q.shape
    kv_heads = segment.k.shape[1]
    # Queries that share a key head become rows of one matrix product.
    q = segment.q.reshape(b, kv_heads, heads // kv_heads * t, h)
    score = jnp.einsum("bkqh,bksh->bkqs", q, segment.k, preferred_element_type=jnp.float32)
    score = score.reshape(b, kv_heads, heads // kv_heads, t, -1) * h**-0.5
    return jnp.where(segment.mask[:, None, None], score, -jnp.inf)


def weighted_values(weights: jax.Array, segment: Segment) -> jax.Array:
    """Values summed by their weights, float32 [B, K, G, T, h]."""
    b, kv_heads, groups, t, s = weights.shape
    w = weights.reshape(b, kv_heads, groups * t, s).astype(segment.v.dtype)
    out = jnp.einsum("bkqs,bksh->bkqh", w, segment.v, preferred_element_type=jnp.float32)
    return out.reshape(b, kv_heads, groups, t, -1)
