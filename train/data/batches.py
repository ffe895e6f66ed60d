"""In which order the rows of a data set are trained on."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from dart_jax.errors import UserError
from train.data.batch import Batch
from train.data.packed_dataset import PackedDataset
from train.data.target_outputs import TaughtDataset


@dataclasses.dataclass(frozen=True)
class Order:
    """Every row once an epoch, shuffled anew in each: a function of seed and step alone.

    So a run's position in the data is its step. Rows that fill no batch are left out of an epoch,
    others in each.

    Attributes:
      rows: of the data set.
      batch: rows a step.
      seed: of the shuffling.
    """

    rows: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.rows:
            raise UserError(
                f"the data fill {self.rows} rows, a batch takes {self.batch}; lower the batch or "
                "the context, or add data"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in the rows."""
        return self.rows // self.batch

    def __call__(self, step: int) -> np.ndarray:
        """The rows of a step, int64 [batch]."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = _permutation(self.rows, self.seed, epoch)
        return order[index * self.batch :][: self.batch]


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """What the trainer is given: the rows of a data set in an order.

    Attributes:
      dataset: the rows, alone or with what the target says of them.
      order: over all of them.
    """

    dataset: PackedDataset | TaughtDataset
    order: Order

    def __post_init__(self) -> None:
        if self.order.rows != self.dataset.rows:
            raise ValueError(f"{self.order} is not of {self.dataset.rows} rows")

    @property
    def batch(self) -> int:
        """Rows a step, over all processes."""
        return self.order.batch

    @property
    def fingerprint(self) -> str:
        """Tells other data, or another order of them."""
        return f"{self.dataset.fingerprint}, {self.order}"

    def __call__(self, step: int, rows: slice) -> Batch:
        """These rows of the step's batch."""
        return self.dataset.batch(self.order(step)[rows])


@functools.lru_cache(maxsize=2)  # a prefetching thread may be an epoch ahead
def _permutation(rows: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(rows)
    order.flags.writeable = False
    return order
