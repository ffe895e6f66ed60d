"""Storage of weights on CPUs: in tiles, in the order in which the C++ core reads them.

Tile t holds outputs 32 t to 32 t + 31; zeros are put in place of those that do not exist.

- In float32 or bfloat16: [ceil(out / 32), in, 32].
- In 8 bits: int8 [ceil(out / 32), ceil(in / 64), 2176]. In a tile 64 inputs are a group: first the
  values, [16, 32, 4], those of four inputs for each output, then of the next four; then a scale for
  each output, the bytes of 32 float32 numbers. A weight is about its value times its scale.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

TILE = 32  # outputs of a tile
GROUP = 64  # inputs of a group
LARGEST = 127  # magnitude of a value in 8 bits
_QUAD = 4


def is_packed(weights: Any) -> bool:
    """Tells whether weights are in tiles, by their shape."""
    return weights.ndim == 3


# Jitted, so that memory holds little but the weights and the tiles.
@partial(jax.jit, static_argnames=("transposed", "dtype"))
def pack(weights: jax.Array, transposed: bool = False, dtype: DTypeLike | None = None) -> jax.Array:
    """Stores weights [in, out], float32 or bfloat16, in tiles of a dtype, by default their own; if
    `transposed`, weights [out, in]."""
    weights = (weights.T if transposed else weights).astype(dtype or weights.dtype)
    d_in, d_out = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -d_out % TILE)))
    return padded.reshape(d_in, padded.shape[1] // TILE, TILE).swapaxes(0, 1)


def pack_exactly(weights: jax.Array, transposed: bool = False) -> jax.Array:
    """Stores weights in tiles of bfloat16 if that holds their values exactly, as it does those of
    most published checkpoints; otherwise of their dtype."""
    exact = bool(_fits_bfloat16(weights))
    return pack(weights, transposed, jnp.bfloat16 if exact else None)


@jax.jit
def _fits_bfloat16(weights: jax.Array) -> jax.Array:
    return jnp.all(weights.astype(jnp.bfloat16).astype(weights.dtype) == weights)


@partial(jax.jit, static_argnames="transposed")
def pack_int8(weights: jax.Array, transposed: bool = False) -> jax.Array:
    """Stores weights in tiles of 8 bits: in each group the weight of the largest magnitude becomes
    127 or -127."""
    in_axis = 1 if transposed else 0
    d_in, d_out = weights.shape[in_axis], weights.shape[1 - in_axis]
    padding = [(0, 0), (0, 0)]
    padding[in_axis], padding[1 - in_axis] = (0, -d_in % GROUP), (0, -d_out % TILE)
    padded = jnp.pad(weights, padding)

    def tile(first: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_slice_in_dim(padded, first, TILE, axis=1 - in_axis)
        part = (part.T if transposed else part).astype(jnp.float32)
        values, scales = round_groups(part.reshape(-1, GROUP, TILE), 1)
        groups = len(values)
        values = values.reshape(groups, GROUP // _QUAD, _QUAD, TILE).swapaxes(2, 3)
        parts = values, jax.lax.bitcast_convert_type(scales, jnp.int8)
        return jnp.concatenate([x.reshape(groups, -1) for x in parts], axis=-1)

    # One after another: memory holds little but the weights and the tiles.
    return jax.lax.map(tile, jnp.arange(0, padded.shape[1 - in_axis], TILE))


def round_groups(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Rounds groups of numbers along an axis, float32 [..., 64, ...], to 8 bits.

    Returns:
      int8 of x's shape, and float32 scales [..., ...]: NaN if a number of the group is not finite.
    """
    magnitude = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
    some = magnitude > 1e-30  # below, numbers are 0: dividing by them might overflow
    values = jnp.round(x * jnp.where(some, LARGEST / magnitude, 0))
    scales = jnp.where(some, magnitude / LARGEST, 0)
    scales = jnp.where(jnp.isfinite(magnitude), scales, jnp.nan)
    return values.astype(jnp.int8), jnp.squeeze(scales, axis)


def unpack(tiles: jax.Array, d_in: int, d_out: int) -> jax.Array:
    """Returns the weights that tiles hold, [in, out]; float32, if they are in 8 bits."""
    if tiles.dtype == jnp.int8:
        count, groups, _ = tiles.shape
        values = tiles[..., : GROUP * TILE].reshape(count, groups, GROUP // _QUAD, TILE, _QUAD)
        values = values.swapaxes(-1, -2).reshape(count, groups, GROUP, TILE)
        scales = tiles[..., GROUP * TILE :].reshape(count, groups, 1, TILE, 4)
        scales = jax.lax.bitcast_convert_type(scales, jnp.float32)
        tiles = (values.astype(jnp.float32) * scales).reshape(count, -1, TILE)
    return tiles.swapaxes(0, 1).reshape(tiles.shape[1], -1)[:d_in, :d_out]
