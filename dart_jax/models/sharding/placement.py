"""Puts weights on the devices that share them, parameter by parameter.

A process says which regions of a parameter its devices hold, and gets only these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.models.sharding.mesh import MODEL
from dart_jax.models.sharding.rules import SplitConfig, check_divides, spec_of

# Of all heads of keys and values.
_KV = ("k_proj", "v_proj", "k_norm")

ParamPath = Sequence[str | int]
# Start and end on each axis.
_Bounds = tuple[tuple[int, int], ...]


class Part(NamedTuple):
    """A region of a stored parameter that devices of this process hold.

    Attributes:
      region: a slice for each axis.
      counted: whether this process is the first to hold it.
    """

    region: tuple[slice, ...]
    counted: bool


class Placement:
    """Puts parameters, as they are loaded, onto JAX's default device."""

    def parts(self, path: ParamPath, shape: tuple[int, ...]) -> list[Part]:
        """Returns this process's regions of a parameter, given its path and shape."""
        return [Part(tuple(slice(0, size) for size in shape), True)]

    def put(
        self, path: ParamPath, shape: tuple[int, ...], values: Sequence[np.ndarray]
    ) -> jax.Array:
        """Puts the parts of a parameter, in the order of `parts`, on their devices."""
        return jax.device_put(values[0])

    def over_processes(self, counts: np.ndarray) -> np.ndarray:
        """Returns the sum of the processes' counts in their parts of shared parameters."""
        return counts


DEFAULT = Placement()


class ModelPlacement(Placement):
    """Puts a model's parameters on the devices that share it, in every process alike. Where these
    are more than heads of keys and values, each head is repeated, so that every device has one."""

    def __init__(self, config: SplitConfig, mesh: Mesh):
        """Prepares the placement.

        Args:
          config: the model's, as in its files.
          mesh: the devices.

        Raises:
          UserError: the model cannot be split.
        """
        check_divides(config, mesh)
        self._config, self._mesh = config, mesh
        self._heads = config.num_key_value_heads

    def parts(self, path: ParamPath, shape: tuple[int, ...]) -> list[Part]:
        sharding, placed = self._sharding(path, shape)
        holders: dict[_Bounds, list[int]] = {}
        for device, index in sharding.devices_indices_map(placed).items():
            holders.setdefault(self._bounds(path, shape, index), []).append(device.process_index)
        here = jax.process_index()
        return [
            Part(tuple(slice(*ends) for ends in bounds), processes[0] == here)
            for bounds, processes in holders.items()
            if here in processes
        ]

    def put(
        self, path: ParamPath, shape: tuple[int, ...], values: Sequence[np.ndarray]
    ) -> jax.Array:
        sharding, placed = self._sharding(path, shape)
        regions = [part.region for part in self.parts(path, shape)]
        of_bounds = {
            tuple((ends.start, ends.stop) for ends in region): value
            for region, value in zip(regions, values, strict=True)
        }
        return jax.make_array_from_callback(
            placed, sharding, lambda index: of_bounds[self._bounds(path, shape, index)]
        )

    def over_processes(self, counts: np.ndarray) -> np.ndarray:
        """As `Placement.over_processes`; all processes must call it."""
        if jax.process_count() == 1:
            return counts
        return multihost_utils.process_allgather(counts).sum(axis=0)

    def stored(self, path: ParamPath, leaf: jax.Array) -> jax.Array:
        """Returns the numbers that the files hold of a parameter, on all devices: no head twice."""
        copies = self._copies(path, leaf.ndim)
        if copies == 1:
            return leaf

        def once(leaf: jax.Array) -> jax.Array:
            heads = leaf.reshape(*leaf.shape[:-1], self._heads, copies, -1)
            return heads[..., 0, :].reshape(*leaf.shape[:-1], -1)

        return jax.jit(once, out_shardings=NamedSharding(self._mesh, P()))(leaf)

    def _copies(self, path: ParamPath, dims: int) -> int:
        """Returns the number of times that a parameter has each of its heads on the devices."""
        if not any(name in _KV for name in path) or spec_of(self._config, path, dims) == P():
            return 1
        return max(self._mesh.shape[MODEL] // self._heads, 1)

    def _sharding(
        self, path: ParamPath, shape: tuple[int, ...]
    ) -> tuple[NamedSharding, tuple[int, ...]]:
        """Returns the sharding of a parameter, and its shape with all copies of its heads."""
        placed = (*shape[:-1], shape[-1] * self._copies(path, len(shape)))
        spec = spec_of(self._config, path, len(shape))
        return NamedSharding(self._mesh, spec), placed

    def _bounds(
        self, path: ParamPath, shape: tuple[int, ...], index: tuple[slice, ...] | None
    ) -> _Bounds:
        """Returns a device's region of a stored parameter, from its region of all copies."""
        assert index is not None
        copies = self._copies(path, len(shape))
        *others, last = zip(index, shape, strict=True)
        bounds = [part.indices(size)[:2] for part, size in others]
        start, stop, _ = last[0].indices(last[1] * copies)
        if copies > 1:  # a device has one head
            size = shape[-1] // self._heads
            start = start // size // copies * size
            stop = start + size
        return (*bounds, (start, stop))


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Copies those arrays of a tree to every device that are not on the mesh yet; every process
    must have them, and the same."""

    def move(leaf: Any) -> jax.Array:
        sharding = getattr(leaf, "sharding", None)
        there = isinstance(sharding, NamedSharding) and sharding.mesh == mesh
        return leaf if there else put(leaf, NamedSharding(mesh, P()))

    return jax.tree.map(move, tree)


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Puts an array onto its devices; a process-local one must be equal in all processes."""
    if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    if jax.process_count() == 1 or not getattr(leaf, "is_fully_addressable", True):
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
