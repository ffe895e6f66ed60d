"""Layers by one call of the C++ core, for CPUs; a target's are in `target.py`.

Between the calls for products, heads and attention XLA would run small operations, each of which
costs a microsecond or more, and the core's threads read ahead from layer to layer. What is computed
is the same, except the attention of rows without a prefix, which the core computes, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dart_jax.models.attention.native import fits_native
from dart_jax.models.attention.segments import PLAIN, Prefix
from dart_jax.models.cpu import or_nothing, used_rows
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import Tiles, described
from dart_jax.models.layers.dense import Linear


def one_call(options: LayerOptions, out: Linear, x: jax.Array, head_dim: int) -> bool:
    """Returns True if the C++ core computes a dense layer by one call.

    Args:
      options: of the layer.
      out: its output projection.
      x: the residual stream.
      head_dim: size of its heads.
    """
    native = options.attention == "native" and options.fused
    tiles = isinstance(out.kernel.get_value(), Tiles)
    return native and tiles and x.dtype == jnp.float32 and fits_native(head_dim)


def run_draft_layer(
    vectors: Sequence[jax.Array],
    linears: Sequence[Linear],
    embeds: jax.Array,
    residual: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    last: jax.Array,
    prefix: Prefix | None,
    *,
    kv_heads: int,
    kv_dtype: DTypeLike,
    eps: float,
    window: int | None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Runs a DART drafter's only layer over T real rows and m mask rows of each sequence.

    Args:
      vectors: what the layer reads in mask rows, [2 D], and the scales of its norms of embeddings,
        of the residual stream and before the MLP, [D].
      linears: queries; keys and values; output projection; gate and up; down. None has a bias.
      embeds: of the tokens after the real rows, float32 [B, T, D].
      residual: the residual stream of the real rows, float32 [B, T, D].
      rotation: cosines and sines for queries and keys, float32 [B, T + m, r / 2].
      last: int32 [B], the anchors among the real rows.
      prefix: cached rows, if any.
      kv_heads: K.
      kv_dtype: of keys and values, float32 or bfloat16.
      eps: of all norms.
      window: positions that a row sees, its own included; by default all.

    Returns:
      The residual stream of the anchor and the mask rows after the layer, [B, 1 + m, D], which
      holds anything under `cpu.only_rows`; and keys and values of the real rows, [B, K, T, h].
    """
    kernels: list[Tiles] = [linear.kernel.get_value() for linear in linears]
    (b, t, d), h = embeds.shape, kernels[1].shape[1] // (2 * kv_heads)
    rows = jax.ShapeDtypeStruct((b, kv_heads, t, h), kv_dtype)
    prefix = prefix or no_prefix(rows)
    stream = jax.ShapeDtypeStruct((b, 1 + rotation[0].shape[1] - t, d), embeds.dtype)
    y, k, v = jax.ffi.ffi_call("dart_draft_layer", (stream, rows, rows))(
        embeds,
        residual,
        *(vector.astype(jnp.float32) for vector in vectors),
        *rotation,
        last.astype(jnp.int32),
        prefix.k,
        prefix.v,
        prefix.length.astype(jnp.int32),
        or_nothing(prefix.pages, jnp.int32),
        used_rows(),
        *(part for kernel in kernels for part in kernel.parts),
        eps=np.float32(eps),
        scale=np.float32(PLAIN.factor(h)),
        window=np.int32(window or 0),
        **described(*kernels),
    )
    return y, (k, v)


def no_prefix(rows: jax.ShapeDtypeStruct) -> Prefix:
    """Returns a cache without rows, for new keys or values [B, K, T, h]."""
    b, kv_heads, _, h = rows.shape
    none = jnp.zeros((b, kv_heads, 0, h), rows.dtype)
    return Prefix(none, none, jnp.zeros(b, jnp.int32))
