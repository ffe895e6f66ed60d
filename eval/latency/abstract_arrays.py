"""Arrays that do not exist: their shapes, on one device or on several, and their bytes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.platform.int8 import round_params
from dart_jax.models.pure import abstract_params
from dart_jax.models.sharding.program import ALL, param_specs, specs_of
from dart_jax.ngram.device_table import DeviceTable


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    """Int32 of this shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def on_devices(where: Any, tree: Any, specs: Any = ALL, *, split_drafter: bool = False) -> Any:
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


def local_shape(x: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape of a device's part."""
    return x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)


def held_bytes(x: jax.ShapeDtypeStruct) -> int:
    """Bytes of a device's part."""
    return math.prod(local_shape(x)) * x.dtype.itemsize


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
        params["draft_ids"] = ints(drafter.draft_vocab_size)
    return params


def weight_bytes(config: DecodeConfig, dtype: Any) -> int:
    """Bytes of the weights that a device holds, the table of embeddings included."""
    params = abstract_weights(config, dtype)
    if (mesh := config.execution.mesh) is not None:
        params = on_devices(mesh, params, param_specs(config, params))
    return sum(held_bytes(x) for x in jax.tree.leaves(params))


def ngram_table(ngrams: int) -> DeviceTable:
    """The shapes of a table with so many n-grams of two and three tokens."""
    places = ngrams + ngrams // 9 + 1
    return DeviceTable(
        sections=ints(2, 4),
        seeds=jax.ShapeDtypeStruct((ngrams // 4 + 1,), jnp.uint16),
        prints=jax.ShapeDtypeStruct((places,), jnp.uint8),
        entries=ints(places, 3),
        vocab_size=ints(),
    )
