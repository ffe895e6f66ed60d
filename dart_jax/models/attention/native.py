"""Attention of new rows to a cached prefix and to each other by the C++ core, for CPUs; and its
heads.

It reads only the rows of the cache that are used, through the table if they are in pages, and those
in the order in which it writes them (`in_groups` in native/include/dart/pages.h). A row's
result is the same, bit for bit, wherever rows are cached, and whether the tokens before it are
cached or are its ancestors among the new rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.attention.segments import Prefix, Scoring, Segment
from dart_jax.models.attention.triton_heads import HeadNorm
from dart_jax.models.cpu import or_nothing, used_rows


def fits(q: jax.Array, prefix: Prefix) -> bool:
    """Returns True if the C++ core computes these sizes and dtypes."""
    known = {q.dtype, prefix.k.dtype} <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)}
    return known and fits_native(q.shape[3])


def fits_native(head_dim: int) -> bool:
    """Returns True if the C++ core computes heads of this size."""
    return head_dim % 16 == 0


def attend_native(new: Segment, prefix: Prefix, scoring: Scoring) -> jax.Array:
    """Computes `attend.attend` for one segment and a prefix, whose keys and values are all float32
    or all bfloat16; sums are float32."""
    b, heads, t, h = new.q.shape
    out = jax.ShapeDtypeStruct((b, t, heads * h), jnp.float32)
    attended = jax.ffi.ffi_call("dart_attention", out)(
        new.q.astype(jnp.float32),
        prefix.k,
        prefix.v,
        new.k,
        new.v,
        prefix.length.astype(jnp.int32),
        or_nothing(prefix.first, jnp.int32),
        jnp.broadcast_to(new.mask, (b, t, new.k.shape[2])),
        or_nothing(prefix.pages, jnp.int32),
        used_rows(),
        scale=np.float32(scoring.factor(h)),
        cap=np.float32(scoring.cap or 0),
    )
    return attended.astype(new.q.dtype)


def rotated_heads_native(
    qkv: jax.Array, cos: jax.Array, sin: jax.Array, heads: int, kv_heads: int, norm: HeadNorm | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes `triton_heads.rotated_heads_triton` in float32, and more: cosines and sines may be
    [B, T, r / 2], for heads whose first r elements are rotated, and the norm's scales [H * h] and
    [K * h], to normalise all heads together."""
    b, t, width = qkv.shape
    h = width // (heads + 2 * kv_heads)
    shapes = [(b, count, t, h) for count in (heads, kv_heads, kv_heads)]
    q, k, v = jax.ffi.ffi_call(
        "dart_heads", [jax.ShapeDtypeStruct(shape, qkv.dtype) for shape in shapes]
    )(
        qkv,
        cos,
        sin,
        or_nothing(None if norm is None else norm.q_scale),
        or_nothing(None if norm is None else norm.k_scale),
        eps=np.float32(0 if norm is None else norm.eps),
        offset=np.float32(0 if norm is None else norm.offset or 0),
    )
    return q, k, v
