"""The largest entries of rows on CPUs, by the C++ core: one pass over the rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def largest(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest entries of every row, largest first; of equal ones the first, and before all
    others NaN.

    Args:
      x: float32 [..., V].
      k: how many, 0 to V.

    Returns:
      Values [..., k] and their indices, int32.
    """
    shape = (*x.shape[:-1], k)
    types = jax.ShapeDtypeStruct(shape, x.dtype), jax.ShapeDtypeStruct(shape, jnp.int32)
    values, indices = jax.ffi.ffi_call("dart_largest", types, vmap_method="broadcast_all")(x)
    return values, indices
