"""What a training step is given: rows of packed documents."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# On the host, or already inside a jitted function.
Array = np.ndarray | jax.Array


class Batch(NamedTuple):
    """Rows of T tokens, each holding one document or several, one behind the other.

    Attributes:
      tokens: int32 [B, T].
      document: int32 [B, T], the number of each token's document within its row, ascending from 1;
        0 where the row is padded at its end.
      supervised: bool [B, T], whether this token is one that the model is to learn to predict.
      features: [B, T, 3D], what the target computed for these rows earlier; None computes it now.
      hidden: [B, T, D], the target's output, after its final norm; None as well.
    """

    tokens: Array
    document: Array
    supervised: Array
    features: Array | None = None
    hidden: Array | None = None


def positions(document: Array) -> jax.Array:
    """int32 [B, T]: every token's place within its own document."""
    index = jnp.arange(document.shape[1], dtype=jnp.int32)[None]
    starts = document != jnp.roll(document, 1, axis=1)
    starts = starts.at[:, 0].set(True)
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)


def causal(document: Array) -> jax.Array:
    """bool [B, T, T]: a token sees its own document up to itself; padding sees padding."""
    t = document.shape[1]
    return (document[:, :, None] == document[:, None]) & jnp.tril(jnp.ones((1, t, t), bool))
