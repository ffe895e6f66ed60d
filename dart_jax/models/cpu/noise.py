"""The Gumbel noise of draws, by the C++ core: XLA takes several times as long on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gumbel_noise_native(keys: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """Computes `decoding.sampling.gumbel_noise`, up to rounding.

    Args:
      keys: uint32 [B, 2].
      position: int32 [B, P].
      vocab: V.

    Returns:
      float32 [B, P, V].
    """
    out = jax.ShapeDtypeStruct((*position.shape, vocab), jnp.float32)
    return jax.ffi.ffi_call("dart_noise", out, vmap_method="sequential")(keys, position)


def add_noise_native(
    logits: jax.Array,
    temperature: jax.Array,
    noise: jax.Array,
    levels: jax.Array,
    ids: jax.Array | None,
) -> jax.Array:
    """Computes `decoding.sampling.add_noise`, up to rounding."""
    temperature = jnp.broadcast_to(temperature, logits.shape[:1])
    ids = jnp.zeros((0,), jnp.int32) if ids is None else ids
    out = jax.ShapeDtypeStruct(logits.shape, jnp.float32)
    call = jax.ffi.ffi_call("dart_noisy", out, vmap_method="sequential")
    return call(logits, temperature, noise, levels, ids)
