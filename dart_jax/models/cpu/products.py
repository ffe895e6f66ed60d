"""Matrix products on CPUs whose weights are stored in tiles, by the C++ core.

XLA's product of a few rows on a CPU takes several times as long as reading the weights. Here the
weights are stored once in the order in which they are read, and each value is summed in one fixed
order: a row's result is the same, bit for bit, computed alone or among others, by one thread or
many. Weights stored in bfloat16 take half of the time to read; arithmetic is float32 all the same,
so that the results are those of the same weights in float32. With weights in 8 bits the inputs are
rounded to 8 bits too, and the products within a group of inputs are summed as integers.

For inference: products cannot be differentiated, nor mapped by `jax.vmap`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.cpu.foreign import available, or_nothing
from dart_jax.models.cpu.tiles import GROUP, TILE, int8_parts, round_groups
from dart_jax.models.inputs import Gated, Inputs, Normed, add, computed, source

_ROUNDED_BYTES = GROUP + 8  # of a group of inputs in 8 bits, with their scale and sum


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
      tiles: W, [in, d_out], as `cpu.tiles` stores it.
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
        return add(y, bias, residual)
    arguments = (
        x.reshape(math.prod(x.shape[:-1]), x.shape[-1]),
        _scale(inputs),
        tiles,
        bias,
        residual,
    )
    # Tiles are only made for CPUs; `platform_dependent` would trace both ways.
    y = (_foreign if available() else _plain)(*arguments, like=inputs, d_out=d_out)
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
    rounded = (0,)
    if tiles.dtype == jnp.int8:
        rounded = (x.shape[0], tiles.shape[1], _ROUNDED_BYTES)
    results = (
        jax.ShapeDtypeStruct((x.shape[0], d_out), x.dtype),
        jax.ShapeDtypeStruct(shape, x.dtype),
        jax.ShapeDtypeStruct(rounded, jnp.int8),
    )
    y, *_ = jax.ffi.ffi_call("dart_product", results)(
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
    if tiles.dtype == jnp.int8:
        y = _int8(x, tiles)
    else:
        y = jnp.einsum("ri,tio->rto", x, tiles.astype(jnp.float32), precision="highest")
    y = y.reshape(x.shape[0], tiles.shape[0] * TILE)[:, :d_out]
    return add(y, bias, None if residual is None else residual.reshape(y.shape))


def _int8(x: jax.Array, tiles: jax.Array) -> jax.Array:
    """[R, in] -> [R, tiles, 32]."""
    groups = tiles.shape[1]
    padded = jnp.pad(x, ((0, 0), (0, groups * GROUP - x.shape[1])))
    x, x_scales = round_groups(padded.reshape(len(x), groups, GROUP), 2)
    values, scales = int8_parts(tiles)
    dots = jnp.einsum("rgi,tgio->rtgo", x, values, preferred_element_type=jnp.int32)
    return jnp.einsum("rtgo,rg,tgo->rto", dots.astype(jnp.float32), x_scales, scales)
