"""The devices that share a training step, rows over "data", the target's matrices over "model"; and
communication between the processes that have them.

Trained parameters are sharded along "data" (FSDP) and gathered where they are used. The frozen
target is sharded along "model" as for decoding (`dart_jax.models.sharding.rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import multihost

from dart_jax.errors import UserError
from dart_jax.models.sharding.mesh import MeshShape

# Parameters with fewer elements are not sharded: communication would cost more than it saves.
SMALL = 2**12


def make_mesh(shape: str | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh ("data", "model") of a shape such as "data=2,model=4"; by default each of
    all devices has some of the rows. A process's devices are adjacent, so that it reads adjacent
    rows. Raises UserError as `MeshShape.parse` and `MeshShape.make`."""
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
    """The sharding of [accumulate, batch / accumulate, ...]: a microbatch's rows over "data";
    raises UserError if the rows do not divide evenly."""
    parts = accumulate * mesh.shape["data"]
    if batch % parts:
        raise UserError(
            f"a batch of {batch} rows does not divide into {accumulate} microbatches over "
            f"{mesh.shape['data']} groups of devices; make it a multiple of {parts}"
        )
    return NamedSharding(mesh, P(None, "data"))


def fsdp_shardings(mesh: Mesh, tree: Any) -> Any:
    """Shardings of trained parameters and optimiser state, by shapes alone, so that moments are
    sharded as their parameters: over "data", the largest axis that divides evenly."""
    groups = mesh.shape["data"]

    def sharding(leaf: Any) -> NamedSharding:
        spec: list[str | None] = [None] * len(leaf.shape)
        axes = [axis for axis, size in enumerate(leaf.shape) if size % groups == 0]
        if groups > 1 and axes and int(np.prod(leaf.shape)) >= SMALL:
            spec[max(axes, key=lambda axis: leaf.shape[axis])] = "data"
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map(sharding, tree)


def wait(name: str, timeout: int = 24 * 3600) -> None:
    """Barrier over all processes; does not use the devices, whose timeouts are short."""
    multihost.sync_global_processes(name, timeout=timeout)


def any_process(flag: bool) -> bool:
    """Returns True if the flag is set in any process; all must call it."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def from_main(value: Any) -> Any:
    """Broadcasts process 0's tree of numbers to every process."""
    if jax.process_count() == 1:
        return value
    return multihost_utils.broadcast_one_to_all(value)
