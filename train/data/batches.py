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
class Order:
    """Every row once per epoch, reshuffled in each: a function of seed and step only.

    So a run's position in the data is its step. Each epoch drops the rows that do not fill a whole
    batch, different ones each time.

    Attributes:
      rows: number of rows of the data set.
      batch: rows per step.
      seed: seed of the shuffling.
    """

    rows: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.rows:
            raise UserError(
                f"the data fill {self.rows} rows, a batch needs {self.batch}; lower --batch-size "
                "or --context, or add data"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in the rows."""
        return self.rows // self.batch

    def __call__(self, step: int) -> np.ndarray:
        """Returns the rows of a step, int64 [batch]."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = _permutation(self.rows, self.seed, epoch)
        return order[index * self.batch :][: self.batch]


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """The trainer's data: the rows of a data set in an order.

    Attributes:
      dataset: the rows, optionally with the target's outputs.
      order: order of all rows.
    """

    dataset: Dataset
    order: Order

    def __post_init__(self) -> None:
        if self.order.rows != self.dataset.rows:
            raise ValueError(f"{self.order} is not of {self.dataset.rows} rows")

    @property
    def batch(self) -> int:
        """Rows per step, over all processes."""
        return self.order.batch

    @property
    def fingerprint(self) -> str:
        """Identifies the data and their order."""
        return f"{self.dataset.fingerprint}, {self.order}"

    def __call__(self, step: int, rows: slice) -> Batch:
        """Returns the given rows of the step's batch."""
        return self.dataset.batch(self.order(step)[rows])


@functools.lru_cache(maxsize=2)  # a prefetching thread may be an epoch ahead
def _permutation(rows: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(rows)
    order.flags.writeable = False
    return order
