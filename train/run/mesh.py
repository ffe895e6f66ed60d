"""How devices share a training step: rows over "data", the target's matrices over "model".

Trained parameters are sharded along "data" (FSDP) and gathered where they are used; the frozen
target's matrices are sharded along "model" (tensor parallelism) and, on request, along "data" too.
A dimension that does not divide evenly is replicated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.errors import UserError

# Parameters with fewer elements are not sharded: communication would cost more than it saves.
SMALL = 2**12

# Axis of a parameter that tensor parallelism splits, by the component of its path that names it.
# The experts' three-dimensional weights are split inside each expert, as an MLP's are:
# `dart_jax.models.experts` processes the experts one at a time.
_OUT, _IN = -1, -2
_TENSOR_PARALLEL = {
    "q_proj": _OUT,
    "k_proj": _OUT,
    "v_proj": _OUT,
    "gate_proj": _OUT,
    "up_proj": _OUT,
    "o_proj": _IN,
    "down_proj": _IN,
    "embed_tokens": _IN,  # [V, D]: the vocabulary
    "lm_head": _OUT,
}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Shape of the device mesh."""

    data: Annotated[int, tyro.conf.arg(name="mesh-data")] = -1
    """Groups of devices that share a batch's rows; -1 uses all devices."""
    model: Annotated[int, tyro.conf.arg(name="mesh-model")] = 1
    """Devices that share the target's matrices."""
    shard_target: bool = False
    """Split the target over the groups as well: more communication, and less memory on all devices
    except the first of a process, which loads the whole target and keeps it for evaluation."""


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh ("data", "model") of all devices, or of the first ones as configured.

    A process's devices are adjacent, so that it reads adjacent rows.

    Args:
      config: the mesh's shape.
      devices: JAX devices; by default all.

    Raises:
      UserError: there are too few devices, or there are several processes and devices left over.
    """
    devices = sorted(devices or jax.devices(), key=lambda d: (d.process_index, d.id))
    count, model = len(devices), config.model
    data = count // model if config.data == -1 and model > 0 else config.data
    used = data * model
    if data < 1 or model < 1 or used > count:
        raise UserError(
            f"a mesh of data {config.data} and model {model} does not fit {count} devices"
        )
    left = count - used
    if left and (config.data == -1 or len({device.process_index for device in devices}) > 1):
        raise UserError(
            f"a mesh of data {data} and model {model} leaves {left} of {count} devices over"
        )
    grid = np.array(devices[:used]).reshape(data, model)
    return Mesh(grid, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what is replicated on every device."""
    return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh, batch: int, accumulate: int = 1) -> NamedSharding:
    """The sharding of [accumulate, batch / accumulate, ...]: a microbatch's rows over "data".

    Raises:
      UserError: the rows do not divide evenly.
    """
    parts = accumulate * mesh.shape["data"]
    if batch % parts:
        raise UserError(
            f"a batch of {batch} rows does not divide into {accumulate} microbatches over "
            f"{mesh.shape['data']} groups of devices; make it a multiple of {parts}"
        )
    return NamedSharding(mesh, P(None, "data"))


def fsdp_shardings(mesh: Mesh, tree: Any) -> Any:
    """Shardings of trained parameters and optimiser state: the largest axis over "data".

    Depends on shapes only, so that parameters and their moments are sharded alike.
    """

    def sharding(leaf: Any) -> NamedSharding:
        spec: list[str | None] = [None] * len(leaf.shape)
        _split_largest(spec, leaf.shape, mesh)
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map(sharding, tree)


def target_shardings(mesh: Mesh, params: Any, *, shard_target: bool = False) -> Any:
    """Shardings of frozen parameters: matrices over "model", the rest replicated.

    Args:
      mesh: with axes "data" and "model".
      params: arrays or their shapes, in the target's nested dicts or in a tree around them.
      shard_target: also split large parameters over "data".
    """

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        names = [getattr(key, "key", None) for key in path]
        spec: list[str | None] = [None] * len(leaf.shape)
        axis = next((_TENSOR_PARALLEL[name] for name in names if name in _TENSOR_PARALLEL), None)
        if axis is not None and len(spec) >= -axis and _divides(leaf.shape[axis], mesh, "model"):
            spec[axis] = "model"
        if shard_target:
            _split_largest(spec, leaf.shape, mesh)
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map_with_path(sharding, params)


def place(tree: Any, shardings: Any) -> Any:
    """Puts arrays onto their devices; process-local arrays must be equal in all processes."""

    def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        if jax.process_count() == 1 or not getattr(leaf, "is_fully_addressable", True):
            return jax.device_put(leaf, sharding)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree, shardings)


def _split_largest(spec: list[str | None], shape: Sequence[int], mesh: Mesh) -> None:
    """Assigns "data" to the largest axis that is not yet split and divides evenly."""
    if int(np.prod(shape)) < SMALL:
        return
    free = [i for i, name in enumerate(spec) if name is None and _divides(shape[i], mesh, "data")]
    if free:
        spec[max(free, key=lambda i: shape[i])] = "data"


def _divides(size: int, mesh: Mesh, axis: str) -> bool:
    return mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0
