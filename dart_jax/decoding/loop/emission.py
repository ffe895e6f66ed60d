"""What a program collects while it generates."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.state import DecodeConfig, DecodeState

# Of a batch of rows, [B, tokens, ...] each: tokens int32, whether they were drafted, and scores.
Emitted = tuple[jax.Array, jax.Array, TokenScores | None]


def emitted_in(config: DecodeConfig, state: DecodeState, packed: jax.Array) -> Emitted:
    """The path of one step: its tokens, of which the packed count is valid."""
    width = config.host_buffer.path
    was_drafted = jnp.arange(width, dtype=jnp.int32)[None] < packed[:, 1:2]
    return packed[:, 2 : 2 + width], was_drafted, state.scores


def room_for(size: int, path: jax.Array) -> jax.Array:
    """Adds room for `size` more tokens to a path [B, P, ...]."""
    return jnp.pad(path, ((0, 0), (0, size), *((0, 0),) * (path.ndim - 2)))


@jax.vmap
def write(collected: jax.Array, path: jax.Array, at: jax.Array) -> jax.Array:
    """Writes each row's path [P, ...] into what was collected [tokens, ...], from place `at` on."""
    start = (at, *(0,) * (collected.ndim - 1))
    return jax.lax.dynamic_update_slice(collected, path, start)
