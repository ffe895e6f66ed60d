"""Rows that are looked up, kept or compared on CPUs, by the C++ core.

XLA divides such small operations among threads, and waits longer for these than they take.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.models.cache import AnyCache, KVCache, parts, with_layers
from dart_jax.models.cpu.foreign import or_nothing


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


def take_rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Looks up rows.

    Args:
      table: [V, D].
      ids: int32 [...], from 0 to V - 1.

    Returns:
      [..., D].
    """
    out = jax.ShapeDtypeStruct((*ids.shape, table.shape[1]), table.dtype)
    return jax.ffi.ffi_call("dart_take", out)(table, ids.astype(jnp.int32))


def append_rows(cache: AnyCache, rows: KVCache, index: jax.Array, length: jax.Array) -> AnyCache:
    """Computes `cache.append` for all layers at once."""
    layers, pages = parts(cache)
    old, structure = jax.tree.flatten(layers)
    new = jax.ffi.ffi_call(
        "dart_append",
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in old],
        input_output_aliases={3 + i: i for i in range(len(old))},
    )(
        index.astype(jnp.int32),
        length.astype(jnp.int32),
        or_nothing(pages, jnp.int32),
        *old,
        *jax.tree.leaves(rows),
    )
    return with_layers(cache, jax.tree.unflatten(structure, new))
