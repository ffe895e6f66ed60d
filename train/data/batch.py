"""The batch of a training step: rows of packed documents."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# On the host, or inside a jitted function.
Array = np.ndarray | jax.Array


class Batch(NamedTuple):
    """Rows of T tokens, each holding one or more consecutive documents.

    Attributes:
      tokens: int32 [B, T].
      document: int32 [B, T], the number of each token's document within its row, ascending from 1;
        0 in the padding at the end of the row.
      supervised: bool [B, T], whether the model learns to predict this token.
      features: [B, T, 3D], precomputed features of the target; None if the step computes them.
      hidden: [B, T, D], precomputed last hidden states of the target, after its final norm; or
        None.
    """

    tokens: Array
    document: Array
    supervised: Array
    features: Array | None = None
    hidden: Array | None = None


def positions(document: Array) -> jax.Array:
    """Returns each token's position within its document, int32 [B, T]."""
    index = jnp.arange(document.shape[1], dtype=jnp.int32)[None]
    starts = document != jnp.roll(document, 1, axis=1)
    starts = starts.at[:, 0].set(True)
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)


def causal(document: Array) -> jax.Array:
    """Returns the mask bool [B, T, T]: tokens attend to their own document up to themselves.

    Padding attends to padding.
    """
    t = document.shape[1]
    return (document[:, :, None] == document[:, None]) & jnp.tril(jnp.ones((1, t, t), bool))
