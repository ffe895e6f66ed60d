"""Loads the next step's rows onto the devices while the current step runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding


class BatchSource(Protocol):
    """Training data as a pure function of the step, so that resuming needs only the step number.

    Attributes:
      batch: rows per step, over all processes.
      fingerprint: identifies the data and their order.
    """

    @property
    def batch(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, step: int, rows: slice) -> Any:
        """Returns a tree of numpy arrays with these rows of the step's batch along the first axis.

        Runs in a separate thread.
        """
        ...


def load(batches: BatchSource, step: int, sharding: NamedSharding, accumulate: int) -> Any:
    """Returns one step's batch as global arrays [accumulate, batch / accumulate, ...].

    Microbatch i starts at row i * batch / accumulate, whatever the mesh. Each process reads only
    the rows that its own devices need, once.
    """
    size = batches.batch // accumulate
    needed = sharding.addressable_devices_indices_map((accumulate, size)).values()
    spans = [rows.indices(size) for _, rows in filter(None, needed)]
    low, high = min(start for start, _, _ in spans), max(stop for _, stop, _ in spans)
    parts = [batches(step, slice(i * size + low, i * size + high)) for i in range(accumulate)]

    def assemble(*leaves: np.ndarray) -> jax.Array:
        shape = (accumulate, size, *leaves[0].shape[1:])

        def rows(index: Any) -> np.ndarray:
            start, stop, _ = index[1].indices(size)
            own = [leaf[start - low : stop - low] for leaf in leaves]
            return own[0][None] if accumulate == 1 else np.stack(own)

        return jax.make_array_from_callback(shape, sharding, rows)

    return jax.tree.map(assemble, *parts)


@contextmanager
def loading(
    batches: BatchSource, steps: range, sharding: NamedSharding, accumulate: int
) -> Iterator[Iterator[Any]]:
    """Yields every step's batch; a thread loads the next one meanwhile."""
    with ThreadPoolExecutor(1, "loader") as thread:

        def ahead() -> Iterator[Any]:
            loads = (thread.submit(load, batches, step, sharding, accumulate) for step in steps)
            following = next(loads, None)
            while following is not None:
                batch, following = following.result(), next(loads, None)
                yield batch

        yield ahead()
