"""The mesh of devices that decode together: rows of a batch over "data", matrices over "model"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

from dart_jax.errors import UserError

DATA, MODEL = "data", "model"


class MeshShape(NamedTuple):
    """Numbers of devices.

    Attributes:
      data: groups, each of which decodes some rows of a batch.
      model: devices of a group, which share the target's matrices.
    """

    data: int = 1
    model: int = 1

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"data={self.data},model={self.model}"

    @classmethod
    def parse(cls, text: str) -> MeshShape:
        """Reads a shape such as "model=4" or "data=2,model=4".

        Raises:
          UserError: it is not of this form.
        """
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, size = part.strip().partition("=")
            if name not in cls._fields or name in sizes or not size.isdecimal() or int(size) < 1:
                raise UserError(f"a mesh is written like data=1,model=4, not {text!r}")
            sizes[name] = int(size)
        return cls(**sizes)

    def make(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Returns the mesh ("data", "model") of the first devices, by default of all there are. The
        devices of a process are adjacent.

        Raises:
          UserError: there are too few, or some processes would have none.
        """
        devices = sorted(devices or jax.devices(), key=lambda d: (d.process_index, d.id))
        first = devices[: self.data * self.model]
        if len(first) < self.data * self.model:
            raise UserError(
                f"a mesh of {self} needs {self.data * self.model} devices; there are {len(devices)}"
            )
        if {d.process_index for d in first} != {d.process_index for d in devices}:
            raise UserError(
                f"a mesh of {self} leaves processes without a device; make it of all "
                f"{len(devices)} devices"
            )
        return self.of(first)

    def of(self, devices: Sequence[Any]) -> Mesh:
        """Returns the mesh of exactly these devices, which are in order."""
        grid = np.array(devices).reshape(self.data, self.model)
        return Mesh(grid, (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto))


def several_processes(mesh: Mesh | None) -> bool:
    """True if processes share a mesh."""
    return mesh is not None and len({d.process_index for d in mesh.devices.flat}) > 1


def first_of(mesh: Mesh | None, seconds: float | None) -> float | None:
    """Returns the seconds of the first of the processes that share a mesh; all must call it."""
    if not several_processes(mesh):
        return seconds
    own = np.float32(np.nan if seconds is None else seconds)
    first = float(multihost_utils.broadcast_one_to_all(own))
    return None if np.isnan(first) else first
