"""Devices that decode together, and which models they share."""

from __future__ import annotations

import dataclasses

from jax.sharding import Mesh

from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.sharding.mesh import DATA, MODEL
from dart_jax.models.sharding.rules import divides


@dataclasses.dataclass(frozen=True)
class Devices:
    """One device, or the devices of a mesh.

    Attributes:
      mesh: the devices, which share the target's weights, or None for one.
      split_drafter: whether they share the drafter's weights, too; otherwise each has all.
    """

    mesh: Mesh | None = None
    split_drafter: bool = False

    @property
    def shards(self) -> int:
        """Devices that share a target's weights."""
        return 1 if self.mesh is None else self.mesh.shape[MODEL]

    @property
    def drafter_shards(self) -> int:
        """Devices that share a drafter's weights."""
        return self.shards if self.split_drafter else 1

    @property
    def groups(self) -> int:
        """Groups of such devices, each with some rows of a batch."""
        return 1 if self.mesh is None else self.mesh.shape[DATA]

    def with_drafter(self, drafter: object) -> Devices:
        """The same for a drafter, which devices share if they can. A small language model they do
        not: it has many layers, and what each exchanges takes longer than to read its weights."""
        split = False
        if self.mesh is not None and isinstance(drafter, DraftLayerConfig):
            split = self.shards > 1 and divides(drafter, self.mesh)
        return dataclasses.replace(self, split_drafter=split)
