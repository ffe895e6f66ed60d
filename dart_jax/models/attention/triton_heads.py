"""One kernel between joined projections and attention, for NVIDIA GPUs: norms of queries and keys,
RoPE, and the layout that attention and the cache have. XLA makes five kernels of that.

Written in Pallas for its Triton backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.models.kernels import pallas as pl
from dart_jax.models.kernels.pallas import load, store

_ROWS = 16  # of a block

Halves = tuple[jax.Array, jax.Array]  # of the elements of heads, [rows, h / 2]


class HeadNorm(NamedTuple):
    """The root-mean-square norm of each head's queries and keys; see `layers.RMSNorm`.

    Attributes:
      q_scale: [h].
      k_scale: [h].
      eps: added to the mean square.
      offset: added to the scales, with which the product is computed in float32, if any.
    """

    q_scale: jax.Array
    k_scale: jax.Array
    eps: float
    offset: float | None


def rotated_heads_triton(
    qkv: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    heads: int,
    kv_heads: int,
    norm: HeadNorm | None,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Splits the output of a joined projection into heads, and normalises and rotates them.

    Args:
      qkv: [B, T, (H + 2 K) * h]: queries, keys, values.
      cos: float32 [B, T, h / 2], of each row's angles.
      sin: float32 [B, T, h / 2].
      heads: H.
      kv_heads: K.
      norm: of queries and keys, before they are rotated, if any.
      interpret: run the kernel in Pallas' interpreter, on any platform.

    Returns:
      Queries [B, H, T, h], keys and values [B, K, T, h].
    """
    from jax.experimental.pallas import triton

    b, t, width = qkv.shape
    h = width // (heads + 2 * kv_heads)
    half = h // 2

    def kernel(x_ref: Any, rotation: Any, scales: Any, q_ref: Any, k_ref: Any, v_ref: Any) -> None:
        sequence, head = pl.program_id(1), pl.program_id(2)
        start = pl.program_id(0) * _ROWS
        rows = pl.ds(start, _ROWS)
        inside = (start + jnp.arange(_ROWS, dtype=jnp.int32) < t)[:, None]
        halves = (pl.ds(0, half), pl.ds(half, half))

        def store_halves(ref: Any, head: jax.Array, values: Halves) -> None:
            for part, value in zip(halves, values, strict=True):
                store(ref.at[sequence, head, rows, part], value, inside)

        def rotated(x: Halves, scale: Any) -> Halves:
            x1, x2 = (part.astype(jnp.float32) for part in x)
            if norm is not None:
                x1, x2 = _normalize((x1, x2), [scale.at[part] for part in halves], norm)
            cos, sin = (load(ref.at[sequence, rows, halves[0]], inside) for ref in rotation)
            return x1 * cos - x2 * sin, x2 * cos + x1 * sin

        first, second = (load(x_ref.at[sequence, rows, head, part], inside) for part in halves)
        x, (q_scale, k_scale) = (first, second), scales

        @pl.when(head < heads)
        def _():
            store_halves(q_ref, head, rotated(x, q_scale))

        @pl.when((head >= heads) & (head < heads + kv_heads))
        def _():
            store_halves(k_ref, head - heads, rotated(x, k_scale))

        @pl.when(head >= heads + kv_heads)
        def _():
            store_halves(v_ref, head - heads - kv_heads, x)

    shapes = [(b, count, t, h) for count in (heads, kv_heads, kv_heads)]
    q, k, v = pl.pallas_call(
        kernel,
        grid=(-(-t // _ROWS), b, heads + 2 * kv_heads),
        out_shape=[jax.ShapeDtypeStruct(shape, qkv.dtype) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
        interpret=interpret,
        name="rotated_heads",
    )(
        qkv.reshape(b, t, heads + 2 * kv_heads, h),
        (cos, sin),
        (None, None) if norm is None else (norm.q_scale, norm.k_scale),
    )
    return q, k, v


def _normalize(x: Halves, scale_refs: Sequence[Any], norm: HeadNorm) -> Halves:
    """Normalises float32 heads and applies the scale, rounding as `layers.RMSNorm` does."""
    from jax.experimental.pallas import triton

    x1, x2 = x
    squares = jnp.sum(x1 * x1, axis=1) + jnp.sum(x2 * x2, axis=1)
    inverse = jax.lax.rsqrt(squares / (2 * x1.shape[1]) + norm.eps)[:, None]

    def scaled(part: jax.Array, ref: Any) -> jax.Array:
        part, scale = part * inverse, triton.load(ref)[None]
        if norm.offset is None:
            return (part.astype(scale.dtype) * scale).astype(jnp.float32)
        part = part * (norm.offset + scale.astype(jnp.float32))
        return part.astype(scale.dtype).astype(jnp.float32)

    return scaled(x1, scale_refs[0]), scaled(x2, scale_refs[1])
