"""Matrix products on CPUs whose weights are stored in tiles, by the C++ core.

XLA's product of a few rows on a CPU takes several times as long as reading the weights. Here the
weights are stored once in the order in which they are read, and each value is summed in one fixed
order: a row's result is the same, bit for bit, computed alone or among others, by one thread or
many. Weights stored in bfloat16 take half of the time to read; arithmetic is float32 all the same,
so that the results are those of the same weights in float32.

For inference: products cannot be differentiated, nor mapped by `jax.vmap`.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.cpu.foreign import available, or_nothing
from dart_jax.models.inputs import Gated, Inputs, Normed, as_row, computed, source

TILE = 32  # outputs of a tile


def pack(weights: jax.Array) -> jax.Array:
    """Stores weights in tiles: [in, out], float32 or bfloat16 -> [ceil(out / 32), in, 32].

    Tile t holds outputs 32 t to 32 t + 31; zeros are put in place of those that do not exist.
    """
    d_in, d_out = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -d_out % TILE)))
    return padded.reshape(d_in, padded.shape[1] // TILE, TILE).swapaxes(0, 1)


def is_packed(weights: jax.Array) -> bool:
    """Whether `pack` returned these weights, by their shape."""
    return weights.ndim == 3


def pack_exactly(weights: jax.Array) -> jax.Array:
    """As `pack`, in bfloat16 if that holds the weights' values exactly, as it does those of most
    published checkpoints."""
    rounded = weights.astype(jnp.bfloat16)
    exact = bool(jnp.all(rounded.astype(weights.dtype) == weights))
    return pack(rounded if exact else weights)


def unpack(tiles: jax.Array, d_out: int) -> jax.Array:
    """Returns what `pack` was given: [in, out]."""
    count, d_in, _ = tiles.shape
    return tiles.swapaxes(0, 1).reshape(d_in, count * TILE)[:, :d_out]


def rows(tiles: jax.Array, ids: jax.Array) -> jax.Array:
    """Looks up the weights of some outputs: the embeddings of tokens, if the weights of a target's
    head are also its embeddings.

    Args:
      tiles: [tiles, in, 32].
      ids: outputs, int32 [...], from 0 to out - 1.

    Returns:
      [..., in], of the tiles' dtype.
    """
    return tiles[ids // TILE, :, ids % TILE]


def product(
    inputs: Inputs,
    tiles: jax.Array,
    d_out: int,
    bias: jax.Array | None = None,
    residual: jax.Array | None = None,
) -> jax.Array:
    """Computes x W + bias + residual, with float32 arithmetic.

    Args:
      inputs: x, [..., in], float32 or bfloat16.
      tiles: W as `pack` stores it, [ceil(d_out / 32), in, 32], float32 or bfloat16.
      d_out: outputs.
      bias: [d_out]; None for none.
      residual: [..., d_out]; None for none.

    Returns:
      [..., d_out], of x's dtype.
    """
    x = source(inputs)
    if x.dtype != jnp.float32:
        # In these dtypes each operation rounds.
        y = product(computed(inputs).astype(jnp.float32), tiles, d_out).astype(x.dtype)
        y = y if bias is None else y + as_row(bias, y)
        return y if residual is None else residual + y
    arguments = (
        x.reshape(math.prod(x.shape[:-1]), x.shape[-1]),
        _scale(inputs),
        tiles,
        bias,
        residual,
    )
    plain = partial(_plain, like=inputs, d_out=d_out)
    if available():
        foreign = partial(_foreign, like=inputs, d_out=d_out)
        y = jax.lax.platform_dependent(*arguments, cpu=foreign, default=plain)
    else:
        y = plain(*arguments)
    return y.reshape(*x.shape[:-1], d_out)


def _scale(inputs: Inputs) -> jax.Array | None:
    return inputs.scale if isinstance(inputs, Normed) else None


def _foreign(
    x: jax.Array,
    scale: jax.Array | None,
    tiles: jax.Array,
    bias: jax.Array | None,
    residual: jax.Array | None,
    *,
    like: Inputs,
    d_out: int,
) -> jax.Array:
    """The C++ core's product of inputs like these, but with x [R, in] or, if gated, [R, 2 in]."""
    shape, kind, eps, offset = (0,), "rows", 0.0, 0.0
    if isinstance(like, Normed):
        shape, kind, eps, offset = x.shape, "norm", like.eps, like.offset or 0.0
    elif isinstance(like, Gated):
        shape = (x.shape[0], x.shape[1] // 2)
        kind = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}[like.activation]
    results = (
        jax.ShapeDtypeStruct((x.shape[0], d_out), x.dtype),
        jax.ShapeDtypeStruct(shape, x.dtype),
    )
    y, _ = jax.ffi.ffi_call("dart_product", results)(
        x,
        tiles,
        or_nothing(scale),
        or_nothing(bias),
        or_nothing(residual),
        input=kind,
        eps=np.float32(eps),
        offset=np.float32(offset),
    )
    return y


def _plain(
    x: jax.Array,
    scale: jax.Array | None,
    tiles: jax.Array,
    bias: jax.Array | None,
    residual: jax.Array | None,
    *,
    like: Inputs,
    d_out: int,
) -> jax.Array:
    """As `_foreign`, up to rounding."""
    if isinstance(like, Normed) and scale is not None:
        x = like._replace(x=x, scale=scale).computed()
    elif isinstance(like, Gated):
        x = like._replace(x=x).computed()
    y = jnp.einsum("ri,tio->rto", x, tiles.astype(jnp.float32), precision="highest")
    y = y.reshape(x.shape[0], tiles.shape[0] * TILE)[:, :d_out]
    y = y if bias is None else y + as_row(bias, y)
    return y if residual is None else residual.reshape(y.shape) + y
