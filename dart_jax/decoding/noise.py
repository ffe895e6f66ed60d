"""The noise of draws, which depends only on (key of the row, absolute position).

A row's key depends on a seed and a number (`row_keys`). The same key therefore gives the same token
whether a position is reached by plain decoding or as a node of a draft tree, and whatever the other
rows are.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dart_jax.decoding.sampling import SamplingValues
from dart_jax.models.cpu.foreign import available
from dart_jax.models.cpu.noise import gumbel_noise_native

_RANDOM = "threefry2x32"


def noise_at(
    sampling: SamplingValues, keys: jax.Array, first: jax.Array, count: int, vocab: int
) -> jax.Array | None:
    """`gumbel_noise` of `count` positions from `first`, int32 [B], on; None in greedy decoding."""
    if sampling.temperature is None:
        return None
    return gumbel_noise(keys, first[:, None] + jnp.arange(count, dtype=jnp.int32)[None], vocab)


def row_keys(seed: jax.Array, row: jax.Array) -> jax.Array:
    """The keys of rows' noise, uint32 [B, 2], from a seed, uint32 scalar or [B], and their numbers,
    int32 [B].

    Threefry whatever JAX's default is: "rbg" gives other numbers to the same key in a batch of
    another size, so plain decoding and a draft tree would not draw alike.
    """

    def key(seed: jax.Array, row: jax.Array) -> jax.Array:
        made = jax.random.fold_in(jax.random.key(seed, impl=_RANDOM), row)
        return jax.random.key_data(made)

    return jax.vmap(key)(jnp.broadcast_to(seed, row.shape), row)


def gumbel_noise(keys: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """Gumbel noise float32 [B, P, V]; row b's depends only on (keys[b], position).

    Args:
      keys: uint32 [B, 2], see `row_keys`.
      position: int32 [B, P].
      vocab: V.
    """
    plain = partial(_gumbel_noise, vocab=vocab)
    on_cpu = partial(gumbel_noise_native, vocab=vocab) if available() else plain
    return jax.lax.platform_dependent(keys, position, cpu=on_cpu, default=plain)


def _gumbel_noise(keys: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """By JAX alone."""

    def row(data, positions):
        key = jax.random.wrap_key_data(data, impl=_RANDOM)
        keys = jax.vmap(lambda p: jax.random.fold_in(key, p))(positions)
        return jax.vmap(lambda k: jax.random.gumbel(k, (vocab,), jnp.float32))(keys)

    return jax.vmap(row)(keys, position)
