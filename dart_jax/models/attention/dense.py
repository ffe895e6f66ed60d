"""Grouped-query attention in plain JAX: on every platform, and with gradients.

Scores and softmax are float32 for every dtype of the weights. Axis letters as in `segments`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import PLAIN, Scoring, Segment, softcap

_MAX_SCORE_BYTES = 2**30


def attend_dense(segments: Sequence[Segment], scoring: Scoring = PLAIN) -> jax.Array:
    """Grouped-query attention with a single softmax over the keys of all segments.

    This avoids concatenating the cache and the new rows, and a segment may hold the same queries
    at other rotary positions. Every row must see at least one key. A large number of rows is
    processed in chunks, so that the scores stay below 1 GiB; chunks are recomputed for gradients.

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
    all_scores = [scores(segment, scoring) for segment in segments]
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


def scores(segment: Segment, scoring: Scoring = PLAIN) -> jax.Array:
    """Scaled, capped, masked scores, float32 [B, K, G, T, S]."""
    b, heads, t, h = segment.q.shape
    kv_heads = segment.k.shape[1]
    # Fold the queries that share a key head into the rows of one matrix product.
    q = segment.q.reshape(b, kv_heads, heads // kv_heads * t, h)
    score = jnp.einsum("bkqh,bksh->bkqs", q, segment.k, preferred_element_type=jnp.float32)
    score = score.reshape(b, kv_heads, heads // kv_heads, t, -1) * scoring.factor(h)
    if scoring.cap is not None:
        score = softcap(score, scoring.cap)
    return jnp.where(segment.mask[:, None, None], score, -jnp.inf)


def weighted_values(weights: jax.Array, segment: Segment) -> jax.Array:
    """Values summed by their weights, float32 [B, K, G, T, h]."""
    b, kv_heads, groups, t, s = weights.shape
    w = weights.reshape(b, kv_heads, groups * t, s).astype(segment.v.dtype)
    out = jnp.einsum("bkqs,bksh->bkqh", w, segment.v, preferred_element_type=jnp.float32)
    return out.reshape(b, kv_heads, groups, t, -1)
