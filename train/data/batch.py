"""Batches of rows of packed documents, their positions and their causal mask."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# On the host, or inside a jitted function.
Array = np.ndarray | jax.Array


class TeacherOutputs(NamedTuple):
    """The frozen target's outputs for packed rows.

    Attributes:
      features: [B, T, 3D].
      hidden: [B, T, D], last hidden states, after the final norm.
      log_total: float32 [B, T], the logarithm of the sum of the exponentials of all V logits.
      best: int32 [B, T], the most likely next token.
    """

    features: Array
    hidden: Array
    log_total: Array
    best: Array


class Batch(NamedTuple):
    """Rows of T tokens, each holding one or more consecutive documents.

    Attributes:
      tokens: int32 [B, T].
      document: int32 [B, T], the number of each token's document within its row, ascending from 1;
        0 in the padding at the end of the row.
      supervised: bool [B, T], whether the model learns to predict this token.
      outputs: the target's, computed earlier; None if the step computes them.
    """

    tokens: Array
    document: Array
    supervised: Array
    outputs: TeacherOutputs | None = None


def positions(document: Array) -> jax.Array:
    """Returns each token's position within its document, int32 [B, T]."""
    index = jnp.arange(document.shape[1], dtype=jnp.int32)[None]
    starts = document != jnp.roll(document, 1, axis=1)
    starts = starts.at[:, 0].set(True)
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)


def causal(document: Array) -> jax.Array:
    """Returns the mask bool [B, T, T]: tokens attend to their own document up to themselves, and
    padding to padding."""
    t = document.shape[1]
    return (document[:, :, None] == document[:, None]) & jnp.tril(jnp.ones((1, t, t), bool))
