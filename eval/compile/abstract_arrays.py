"""Arrays that do not exist: their shapes, on one device or on several, and their bytes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.models.sharding.program import ALL, specs_of
from dart_jax.ngram.device_table import DeviceTable


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    """Int32 of this shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def on_devices(where: Any, tree: Any, specs: Any = ALL) -> Any:
    """The same shapes on a device, or on a mesh in parts; `specs` may be a tree's beginning."""

    def placed(spec: P, part: Any) -> Any:
        if isinstance(where, Mesh | AbstractMesh):
            sharding: Any = NamedSharding(where, spec)
        else:
            sharding = jax.sharding.SingleDeviceSharding(where)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
        )

    return jax.tree.map(placed, specs_of(specs), tree, is_leaf=lambda x: isinstance(x, P))


def local_shape(x: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape of a device's part."""
    return x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)


def held_bytes(x: jax.ShapeDtypeStruct) -> int:
    """Bytes of a device's part."""
    return math.prod(local_shape(x)) * x.dtype.itemsize


def ngram_table(ngrams: int) -> DeviceTable:
    """The shapes of a table with so many n-grams of two and three tokens."""
    places = ngrams + ngrams // 9 + 1
    return DeviceTable(
        sections=ints(2, 4),
        seeds=jax.ShapeDtypeStruct((ngrams // 4 + 1,), jnp.uint16),
        prints=jax.ShapeDtypeStruct((places,), jnp.uint8),
        entries=ints(places, 3),
        vocab_size=ints(),
        lists=ints(0, 2),
        followers=ints(0, 2),
    )
