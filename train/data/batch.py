"""Batches of training steps, which are rows of packed documents, in the order of training."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError

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


class Dataset(Protocol):
    """Packed rows, with or without the target's outputs."""

    @property
    def rows(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def batch(self, rows: np.ndarray) -> Batch: ...


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Every row of the data, with or without the target's outputs, once per epoch, reshuffled in
    each: a function of seed and step only, so that a run's position in the data is its step.
    Each epoch drops the rows that do not fill a whole batch, different ones each time."""

    dataset: Dataset
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.dataset.rows:
            raise UserError(
                f"the data fill {self.dataset.rows} rows, a batch needs {self.batch}; lower "
                "--batch-size or --context, or add data"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in the rows."""
        return self.dataset.rows // self.batch

    @property
    def fingerprint(self) -> str:
        """Identifies the data and their order."""
        order = f"Order(rows={self.dataset.rows}, batch={self.batch}, seed={self.seed})"
        return f"{self.dataset.fingerprint}, {order}"

    def order(self, step: int) -> np.ndarray:
        """Returns the rows of a step, int64 [batch]."""
        epoch, index = divmod(step, self.steps_per_epoch)
        rows = _permutation(self.dataset.rows, self.seed, epoch)
        return rows[index * self.batch :][: self.batch]

    def __call__(self, step: int, rows: slice) -> Batch:
        """Returns the given rows of the step's batch."""
        return self.dataset.batch(self.order(step)[rows])


@functools.lru_cache(maxsize=2)  # a prefetching thread may be an epoch ahead
def _permutation(rows: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(rows)
    order.flags.writeable = False
    return order
