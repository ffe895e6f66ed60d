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
from dart_jax.models.cpu.tiles import GROUP
from dart_jax.models.inputs import Gated, Inputs, Normed, add, computed, source

_INT8_BYTES = GROUP + 8  # of a group of inputs in 8 bits, with their scale and sum


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

    Raises:
      RuntimeError: XLA cannot call the C++ core here.
    """
    if not available():
        raise RuntimeError("weights in tiles need the C++ core, which this jaxlib cannot call")
    x = source(inputs)
    if x.dtype != jnp.float32:
        # In these dtypes each operation rounds.
        y = product(computed(inputs).astype(jnp.float32), tiles, d_out).astype(x.dtype)
        return add(y, bias, residual)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    count, width = rows.shape
    kind, scale, eps, offset = "rows", None, 0.0, 0.0
    normed, int8 = (0,), (0,)  # rows that the core keeps meanwhile: normalised or gated; in 8 bits
    if isinstance(inputs, Normed):
        kind, scale, eps, offset = "norm", inputs.scale, inputs.eps, inputs.offset or 0.0
        normed = (count, width)
    elif isinstance(inputs, Gated):
        kind = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}[inputs.activation]
        normed = (count, width // 2)
    if tiles.dtype == jnp.int8:
        int8 = (count, tiles.shape[1], _INT8_BYTES)
    results = (
        jax.ShapeDtypeStruct((count, d_out), x.dtype),
        jax.ShapeDtypeStruct(normed, x.dtype),
        jax.ShapeDtypeStruct(int8, jnp.int8),
    )
    y, *_ = jax.ffi.ffi_call("dart_product", results)(
        rows,
        tiles,
        or_nothing(scale),
        or_nothing(bias),
        or_nothing(residual),
        input=kind,
        eps=np.float32(eps),
        offset=np.float32(offset),
    )
    return y.reshape(*x.shape[:-1], d_out)
