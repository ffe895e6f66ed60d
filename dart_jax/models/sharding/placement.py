"""Puts weights on the devices that share them, parameter by parameter.

A process says which regions of a parameter its devices hold, and gets only these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Part(NamedTuple):
    """A region of a parameter that devices of this process hold.

    Attributes:
      region: a slice for each axis.
      devices: those of this process that hold it.
      counted: whether this process is the first to hold it.
    """

    region: tuple[slice, ...]
    devices: tuple[Any, ...]
    counted: bool


class Placement:
    """Puts parameters, as they are loaded, onto JAX's default device."""

    def parts(self, path: ParamPath, shape: tuple[int, ...]) -> list[Part]:
        """What this process must have of a parameter, given its path and shape."""
        return [Part(tuple(slice(0, size) for size in shape), (), True)]

    def put(
        self, path: ParamPath, shape: tuple[int, ...], values: Sequence[np.ndarray]
    ) -> jax.Array:
        """Puts the parts of a parameter, in the order of `parts`, on their devices."""
        return jax.device_put(values[0])

    def over_processes(self, counts: np.ndarray) -> np.ndarray:
        """The sum of what the processes that share parameters have counted in their parts."""
        return counts


DEFAULT = Placement()


class ShardedPlacement(Placement):
    """Puts parameters, as they are loaded, where shardings want them, in every process alike."""

    def __init__(self, sharding: Callable[[ParamPath, tuple[int, ...]], NamedSharding]):
        """Takes what a parameter's sharding is, given its path and shape."""
        self._sharding = sharding

    def parts(self, path: ParamPath, shape: tuple[int, ...]) -> list[Part]:
        """As `Placement.parts`."""
        return list(_parts(self._sharding(path, shape), shape).values())

    def put(
        self, path: ParamPath, shape: tuple[int, ...], values: Sequence[np.ndarray]
    ) -> jax.Array:
        """As `Placement.put`."""
        return _put_parts(self._sharding(path, shape), shape, self.parts(path, shape), values)

    def over_processes(self, counts: np.ndarray) -> np.ndarray:
        """As `Placement.over_processes`; all processes must call it."""
        if jax.process_count() == 1:
            return counts
        return multihost_utils.process_allgather(counts).sum(axis=0)


class ModelPlacement(ShardedPlacement):
    """Puts a model's parameters on the devices that share it."""

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
        super().__init__(self._sharding_of)
        self._heads = config.num_key_value_heads
        self._copies = max(mesh.shape[MODEL] // self._heads, 1)

    def parts(self, path: ParamPath, shape: tuple[int, ...]) -> list[Part]:
        """As `Placement.parts`; a device has one head of keys and values, at least."""
        if not self._repeats(path, shape):
            return super().parts(path, shape)
        size = shape[-1] // self._heads
        parts: dict[Any, Part] = {}
        placed = self._placed(shape)
        for bounds, part in _parts(self._sharding(path, placed), placed).items():
            head = (part.region[-1].start or 0) // size // self._copies
            region = (*part.region[:-1], slice(head * size, (head + 1) * size))
            where = (bounds[:-1], head)
            known = parts.get(where, Part(region, (), False))
            devices, counted = known.devices + part.devices, known.counted
            # Of the devices with this head, the first ones have the first of its copies.
            counted |= part.counted and (part.region[-1].start or 0) == head * size * self._copies
            parts[where] = Part(region, devices, counted)
        return list(parts.values())

    def put(
        self, path: ParamPath, shape: tuple[int, ...], values: Sequence[np.ndarray]
    ) -> jax.Array:
        """As `Placement.put`."""
        if not self._repeats(path, shape):
            return super().put(path, shape, values)
        placed = self._placed(shape)
        return _put_parts(self._sharding(path, placed), placed, self.parts(path, shape), values)

    def _repeats(self, path: ParamPath, shape: tuple[int, ...]) -> bool:
        """Whether a parameter's heads are repeated, so that each device has one."""
        if self._copies == 1 or not any(name in _KV for name in path):
            return False
        return spec_of(self._config, path, len(shape)) != P()

    def _sharding_of(self, path: ParamPath, shape: tuple[int, ...]) -> NamedSharding:
        return NamedSharding(self._mesh, spec_of(self._config, path, len(shape)))

    def _placed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] * self._copies)


def _parts(
    sharding: NamedSharding, shape: tuple[int, ...]
) -> dict[tuple[tuple[int, int], ...], Part]:
    """What this process's devices hold of an array, by its bounds."""
    parts: dict[tuple[tuple[int, int], ...], Part] = {}
    first: dict[tuple[tuple[int, int], ...], int] = {}
    for device, region in sharding.devices_indices_map(shape).items():
        pairs = zip(region, shape, strict=True)
        bounds = tuple(part.indices(size)[:2] for part, size in pairs)
        process = first.setdefault(bounds, device.process_index)
        if device.process_index == jax.process_index():
            known = parts.get(bounds)
            devices = (*(known.devices if known else ()), device)
            region = tuple(slice(*pair) for pair in bounds)
            parts[bounds] = Part(region, devices, process == jax.process_index())
    return parts


def _put_parts(
    sharding: NamedSharding,
    shape: tuple[int, ...],
    parts: Sequence[Part],
    values: Sequence[np.ndarray],
) -> jax.Array:
    pieces = [
        jax.device_put(value, device)
        for part, value in zip(parts, values, strict=True)
        for device in part.devices
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, pieces)


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Copies those arrays of a tree to every device that are not on the mesh yet; every process
    must have them, and the same."""

    def moved(leaf: Any) -> jax.Array:
        sharding = getattr(leaf, "sharding", None)
        there = isinstance(sharding, NamedSharding) and sharding.mesh == mesh
        return leaf if there else put(leaf, NamedSharding(mesh, P()))

    return jax.tree.map(moved, tree)


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Puts an array onto its devices; a process-local one must be equal in all processes."""
    if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    if jax.process_count() == 1 or not getattr(leaf, "is_fully_addressable", True):
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
