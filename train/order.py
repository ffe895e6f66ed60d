"""In which order the rows of a data set are trained on."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from dart_jax.errors import UserError


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

    def epoch(self, step: int) -> int:
        """From 0."""
        return step // self.steps_per_epoch

    def __call__(self, step: int) -> np.ndarray:
        """The rows of a step, int64 [batch]."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = _permutation(self.rows, self.seed, epoch)
        return order[index * self.batch :][: self.batch]


@functools.lru_cache(maxsize=2)  # a prefetching thread may be an epoch ahead
def _permutation(rows: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(rows)
    order.flags.writeable = False
    return order
