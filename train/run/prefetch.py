"""Brings a step's rows to the devices while the step before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding


class Batches(Protocol):
    """Training data: a pure function of the step, so that resuming needs nothing else.

    Attributes:
      batch: rows of a step, over all processes.
      fingerprint: tells other data, or another order of them.
    """

    @property
    def batch(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, step: int, rows: slice) -> Any:
        """A tree of numpy arrays that hold these rows of the step's batch along their first axis.

        Runs in a thread of its own.
        """
        ...


def load(batches: Batches, step: int, sharding: NamedSharding, accumulate: int) -> Any:
    """One step's batch as global arrays [accumulate, batch / accumulate, ...].

    Microbatch i is rows i * batch / accumulate and on, whatever the mesh. A process reads what its
    own devices need, once.
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
    batches: Batches, steps: range, sharding: NamedSharding, accumulate: int
) -> Iterator[Iterator[Any]]:
    """Yields every step's batch; the next one is loaded in a thread meanwhile."""
    with ThreadPoolExecutor(1, "loader") as thread:

        def ahead() -> Iterator[Any]:
            following = None
            for step in steps:
                now = following or thread.submit(load, batches, step, sharding, accumulate)
                following = None
                batch = now.result()
                if step + 1 in steps:
                    following = thread.submit(load, batches, step + 1, sharding, accumulate)
                yield batch

        yield ahead()
