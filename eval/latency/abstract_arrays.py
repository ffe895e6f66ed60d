"""Arrays that do not exist: their shapes, on one device or on several, and their bytes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.platform.int8 import round_params
from dart_jax.models.pure import abstract_params
from dart_jax.models.sharding.program import ALL, param_specs, specs_of


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    """Int32 of this shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def on_devices(where: Any, tree: Any, specs: Any = ALL, *, split_drafter: bool = False) -> Any:
    """Places shapes on a device, or in parts on a mesh; `specs` may be a tree's beginning."""

    def place(spec: P, part: Any) -> Any:
        on_mesh = isinstance(where, Mesh | AbstractMesh)
        sharding = NamedSharding(where, spec) if on_mesh else SingleDeviceSharding(where)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
        )

    return jax.tree.map(
        place, specs_of(specs, split_drafter), tree, is_leaf=lambda x: isinstance(x, P)
    )


def held_shape(x: Any) -> tuple[int, ...]:
    """The shape of a device's part of an array or of a shape on devices."""
    return x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)


def held_bytes(tree: Any) -> int:
    """Bytes of a device's parts of all arrays in a tree."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(held_shape(x)) * x.dtype.itemsize for x in leaves)


def abstract_weights(config: DecodeConfig, dtype: Any) -> dict[str, Any]:
    """The shapes of the models' parameters as they are decoded with (see `DecodeParams`)."""

    def weights(model: Any) -> Any:
        stored = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)),
            abstract_params(model, config.execution.fused),
        )
        return jax.eval_shape(round_params, stored) if config.execution.rounded else stored

    params = {"target": weights(config.target)}
    drafter = config.drafter
    if isinstance(drafter, DraftLayerConfig):
        params |= {"drafter": weights(drafter), "draft_ids": ints(drafter.draft_vocab_size)}
    return params


def placed_weights(config: DecodeConfig, dtype: Any) -> dict[str, Any]:
    """The same, in parts if there is a mesh."""
    params = abstract_weights(config, dtype)
    if (mesh := config.execution.mesh) is None:
        return params
    return on_devices(mesh, params, param_specs(config, params))
