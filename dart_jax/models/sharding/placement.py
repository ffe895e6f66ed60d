"""Puts a target's weights on the devices that share it, parameter by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.models.config import TargetConfig
from dart_jax.models.sharding.mesh import MODEL
from dart_jax.models.sharding.rules import check_divides, spec_of

# Of all heads of keys and values.
_KV = ("k_proj", "v_proj", "k_norm")


class Placement:
    """Puts parameters, as they are loaded, where a mesh wants them."""

    def __init__(self, config: TargetConfig, mesh: Mesh):
        """Raises UserError if the target cannot be split."""
        check_divides(config, mesh)
        self._config, self._mesh = config, mesh
        self._copies = max(mesh.shape[MODEL] // config.num_key_value_heads, 1)

    def __call__(self, path: Sequence[str | int], value: np.ndarray) -> jax.Array:
        """Puts a parameter, given its path, on the devices; of every process, which must all have
        it."""
        spec = spec_of(self._config, path, value.ndim)
        if self._copies > 1 and spec != P() and any(name in _KV for name in path):
            heads = value.reshape(*value.shape[:-1], self._config.num_key_value_heads, -1)
            value = np.repeat(heads, self._copies, axis=-2).reshape(*value.shape[:-1], -1)
        return put(value, NamedSharding(self._mesh, spec))


def everywhere(mesh: Mesh, params: Any) -> Any:
    """The same parameters, whole on every device; every process must have them."""
    whole = NamedSharding(mesh, P())
    return jax.tree.map(lambda x: put(x, whole), params)


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Puts an array onto its devices; a process-local one must be equal in all processes."""
    if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    if jax.process_count() == 1 or not getattr(leaf, "is_fully_addressable", True):
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
