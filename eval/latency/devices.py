"""What devices of a mesh share: the rows of a batch, and random numbers, each making its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from dart_jax.errors import UserError
from dart_jax.models.sharding.program import ALL


def check_batch(batch: int, groups: int) -> None:
    """Raises UserError if groups of devices cannot share a batch."""
    if batch % groups:
        raise UserError(
            f"{groups} groups of devices cannot share a batch of {batch} evenly; change "
            "--batch-size or --mesh"
        )


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
