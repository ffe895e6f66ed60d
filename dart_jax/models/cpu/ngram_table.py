"""Lookups in an n-gram table on CPUs, by the C++ core: XLA computes every part of an entry anew."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def look_up_native(
    sections: jax.Array,
    seeds: jax.Array,
    prints: jax.Array,
    entries: jax.Array,
    known: jax.Array,
    token: jax.Array,
    wanted: jax.Array,
    *,
    unseen: np.float32,
) -> tuple[jax.Array, jax.Array]:
    """Computes `decoding.search.lookup.look_up`.

    Args:
      sections: int32 [order - 1, 4]; this and what follows as in `DeviceTable`.
      seeds: uint16 [K].
      prints: uint8 [S].
      entries: int32 [S, 3].
      known: int32 [B, W, order - 1].
      token: int32 [B, k].
      wanted: bool [B, W, k].
      unseen: log(0 + eps).

    Returns:
      log_q float32 [B, W, k] and places int32 [order - 2, B, W, k].
    """
    shape = (*known.shape[:2], token.shape[-1])
    types = (
        jax.ShapeDtypeStruct(shape, jnp.float32),
        jax.ShapeDtypeStruct((known.shape[-1] - 1, *shape), jnp.int32),
    )
    call = jax.ffi.ffi_call("dart_look_up", types)
    log_q, places = call(sections, seeds, prints, entries, known, token, wanted, unseen=unseen)
    return log_q, places
