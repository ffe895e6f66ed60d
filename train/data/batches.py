"""The batches of a data set, in the order of training."""

from __future__ import annotations

import dataclasses
import functools
from typing import Protocol

import numpy as np

from dart_jax.errors import UserError
from train.data.batch import Batch


class Dataset(Protocol):
    """Packed rows, with or without the target's outputs."""

    @property
    def rows(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def batch(self, rows: np.ndarray) -> Batch: ...


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Every row once per epoch, reshuffled in each: a function of seed and step only.

    So a run's position in the data is its step. Each epoch drops the rows that do not fill a whole
    batch, different ones each time.

    Attributes:
      dataset: the rows, optionally with the target's outputs.
      batch: rows per step, over all processes.
      seed: seed of the shuffling.
    """

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
