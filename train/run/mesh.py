"""The devices that share a training step: rows over "data", the target's matrices over "model".

Trained parameters are sharded along "data" (FSDP) and gathered where they are used. The frozen
target is sharded along "model" as for decoding (`dart_jax.models.sharding.rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.errors import UserError
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.models.sharding.placement import put

# Parameters with fewer elements are not sharded: communication would cost more than it saves.
SMALL = 2**12


def make_mesh(shape: str | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh ("data", "model") of a shape such as "data=2,model=4"; by default each of
    all devices has some of the rows. A process's devices are adjacent, so that it reads adjacent
    rows.

    Args:
      shape: the shape, as `MeshShape.parse` reads it.
      devices: JAX devices; by default all.

    Raises:
      UserError: as `MeshShape.parse` and `MeshShape.make`.
    """
    devices = devices or jax.devices()
    sizes = MeshShape(data=len(devices)) if shape is None else MeshShape.parse(shape)
    return sizes.make(devices)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what is replicated on every device."""
    return NamedSharding(mesh, P())


def jit_replicated(function: Callable[..., Any], mesh: Mesh | None) -> Callable[..., Any]:
    """Compiles a function whose results every device gets whole; None stands for one device."""
    return jax.jit(function, out_shardings=None if mesh is None else replicated(mesh))


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
