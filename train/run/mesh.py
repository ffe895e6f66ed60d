"""The devices that share a training step: rows over "data", the target's matrices over "model".

Trained parameters are sharded along "data" (FSDP) and gathered where they are used. The frozen
target is sharded along "model" as for decoding (`dart_jax.models.sharding.rules`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.errors import UserError
from dart_jax.models.sharding.mesh import MeshShape, in_order
from dart_jax.models.sharding.placement import put

# Parameters with fewer elements are not sharded: communication would cost more than it saves.
SMALL = 2**12


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Shape of the device mesh."""

    data: Annotated[int, tyro.conf.arg(name="mesh-data")] = -1
    """Groups of devices that share a batch's rows; -1 uses all devices."""
    model: Annotated[int, tyro.conf.arg(name="mesh-model")] = 1
    """Devices that share the target's matrices."""


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh ("data", "model") of all devices, or of the first ones as configured.

    A process's devices are adjacent, so that it reads adjacent rows.

    Args:
      config: the mesh's shape.
      devices: JAX devices; by default all.

    Raises:
      UserError: there are too few devices, or there are several processes and devices left over.
    """
    devices = in_order(devices or jax.devices())
    count, model = len(devices), config.model
    data = count // model if config.data == -1 and model > 0 else config.data
    used = data * model
    if data < 1 or model < 1 or used > count:
        raise UserError(
            f"a mesh of data {config.data} and model {model} does not fit {count} devices"
        )
    rest = count - used
    if rest and (config.data == -1 or len({device.process_index for device in devices}) > 1):
        raise UserError(
            f"a mesh of data {data} and model {model} leaves {rest} of {count} devices over"
        )
    return MeshShape(data, model).of(devices[:used])


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
    """Shardings of trained parameters and optimiser state: over "data", the largest axis that
    divides evenly.

    Depends on shapes only, so that parameters and their moments are sharded alike.
    """

    groups = mesh.shape["data"]

    def sharding(leaf: Any) -> NamedSharding:
        spec: list[str | None] = [None] * len(leaf.shape)
        axes = [axis for axis, size in enumerate(leaf.shape) if size % groups == 0]
        if groups > 1 and axes and int(np.prod(leaf.shape)) >= SMALL:
            spec[max(axes, key=lambda axis: leaf.shape[axis])] = "data"
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map(sharding, tree)


def place(tree: Any, shardings: Any) -> Any:
    """Puts arrays onto their devices; process-local arrays must be equal in all processes."""
    return jax.tree.map(put, tree, shardings)
