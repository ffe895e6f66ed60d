"""What a program collects while it generates."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.state import DecodeConfig, DecodeState


class Emitted(NamedTuple):
    """Of a batch of rows, each [B, tokens, ...].

    Attributes:
      tokens: int32.
      ranks: int32, which nodes drafted them; 0 for the target's own.
      scores: what is reported about them; None if nothing is.
      features: the target's, of the rows before them, where a drafter will read what plain decoding
        has written; otherwise None.
    """

    tokens: jax.Array
    ranks: jax.Array
    scores: TokenScores | None
    features: jax.Array | None


def emitted_in(config: DecodeConfig, state: DecodeState, packed: jax.Array) -> Emitted:
    """The path of one step, of which the packed count is valid."""
    buffer = config.host_buffer
    features = state.features if config.drafting is None else None
    return Emitted(buffer.tokens(packed), buffer.ranks(packed), state.scores, features)


def room_for(size: int, path: jax.Array) -> jax.Array:
    """Adds room for `size` more tokens to a path [B, P, ...]."""
    return jnp.pad(path, ((0, 0), (0, size), *((0, 0),) * (path.ndim - 2)))


@jax.vmap
def write(collected: jax.Array, path: jax.Array, at: jax.Array) -> jax.Array:
    """Writes each row's path [P, ...] into what was collected [tokens, ...], from place `at` on."""
    start = (at, *(0,) * (collected.ndim - 1))
    return jax.lax.dynamic_update_slice(collected, path, start)
