"""What every way of searching trees offers the decoding loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, Self

import jax
import numpy as np

from dart_jax.decoding.host_buffer import HostBuffer

# In C++ on the host, called through Python or by XLA; or in JAX on the device.
SearchWay = Literal["callback", "native", "device"]

# Searches inside a jitted program: (argument, packed int32 [B, width]) -> trees int32
# [B, 3, N + 1]. Hashable, so that a program can be compiled for it.
SearchInProgram = Callable[[Any, jax.Array], jax.Array]


class TreeSearch(Protocol):
    """Host buffer -> packed draft trees, int32 [B, 3, N + 1], nodes from the best on.

    Attributes:
      way: where it searches when a program calls it.
      nodes: N.
      seconds: time that searches on the host took since this was last set to 0.
    """

    nodes: int

    @property
    def seconds(self) -> float: ...
    @seconds.setter
    def seconds(self, value: float) -> None: ...
    @property
    def way(self) -> SearchWay: ...

    @property
    def in_program(self) -> SearchInProgram:
        """The search as a part of jitted programs; equal for searches that share programs."""
        ...

    @property
    def argument(self) -> Any:
        """What programs pass to it: arrays."""
        ...

    def __call__(self, packed: np.ndarray) -> np.ndarray | jax.Array:
        """Searches the trees of one step, between two programs."""
        ...

    def resized(self, host_buffer: HostBuffer, nodes: int) -> Self:
        """The same search for trees of another size."""
        ...

    def check(self) -> None:
        """Raises RuntimeError if a search in a program that has ended failed."""
        ...
