"""What each device of a mesh has of a model and its caches: shapes, bytes, and random numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.platform.int8 import round_params
from dart_jax.models.pure import abstract_params
from dart_jax.models.sharding.program import ALL, param_specs, specs_of


def check_batch(batch: int, groups: int) -> None:
    """Raises UserError if groups of devices cannot share a batch."""
    if batch % groups:
        raise UserError(
            f"{groups} groups of devices cannot share a batch of {batch} evenly; change "
            "--batch-size or --mesh"
        )


def abstract_weights(config: DecodeConfig, dtype: Any) -> dict[str, Any]:
    """The shapes of a model's parameters, as they are decoded with (see `DecodeParams`)."""

    def weights(model: Any) -> Any:
        stored = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)),
            abstract_params(model, config.execution.fused),
        )
        return jax.eval_shape(round_params, stored) if config.execution.rounded else stored

    params = {"target": weights(config.target)}
    drafter = config.drafter
    if isinstance(drafter, DraftLayerConfig):
        params["drafter"] = weights(drafter)
        params["draft_ids"] = jax.ShapeDtypeStruct((drafter.draft_vocab_size,), jnp.int32)
    return params


def weight_bytes(config: DecodeConfig, dtype: Any) -> int:
    """Bytes of the weights that a device holds, the table of embeddings included."""
    params = abstract_weights(config, dtype)
    if (mesh := config.execution.mesh) is not None:
        params = on(mesh, params, param_specs(config, params))
    return sum(own_bytes(x) for x in jax.tree.leaves(params))


def on(where: Any, tree: Any, specs: Any = ALL, *, split_drafter: bool = False) -> Any:
    """The same shapes on a device, or on a mesh in parts; `specs` may be a tree's beginning."""

    def placed(spec: P, part: Any) -> Any:
        if isinstance(where, Mesh | AbstractMesh):
            sharding: Any = NamedSharding(where, spec)
        else:
            sharding = jax.sharding.SingleDeviceSharding(where)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
        )

    known = specs_of(specs, split_drafter)
    return jax.tree.map(placed, known, tree, is_leaf=lambda x: isinstance(x, P))


def own_shape(x: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape of a device's part."""
    return x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)


def own_bytes(x: jax.ShapeDtypeStruct) -> int:
    """Bytes of a device's part."""
    return math.prod(own_shape(x)) * x.dtype.itemsize


@partial(jax.jit, static_argnames=("shape", "dtype", "sharding"))
def random_array(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, sharding: NamedSharding | None = None
) -> jax.Array:
    """Normal random numbers. With a sharding, every device makes its own part and no more; what
    devices have alike is the same."""
    if sharding is None:
        return jax.random.normal(key, shape, dtype)
    part = sharding.shard_shape(shape)

    def own(key: jax.Array) -> jax.Array:
        for axis in sharding.spec:
            if axis is not None:
                key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        return jax.random.normal(key, part, dtype)

    made = jax.shard_map(
        own, mesh=sharding.mesh, in_specs=ALL, out_specs=sharding.spec, check_vma=False
    )
    return made(key)
