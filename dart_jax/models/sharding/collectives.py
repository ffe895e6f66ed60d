"""Exchanges of devices within a program: of a group, which shares a model, and of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dart_jax.models.sharding.mesh import DATA, MODEL


def total(x: jax.Array) -> jax.Array:
    """Returns the sum of what the devices have."""
    return jax.lax.psum(x, MODEL)


def largest(x: jax.Array) -> jax.Array:
    """Returns the largest of what the devices have."""
    return jax.lax.pmax(x, MODEL)


def joined(x: jax.Array) -> jax.Array:
    """[..., n] of each of m devices -> [..., m n] on all, in their order."""
    return jax.lax.all_gather(x, MODEL, axis=x.ndim - 1, tiled=True)


def local_shard(x: jax.Array, count: int, axis: int = -1) -> jax.Array:
    """Returns a device's part of an array that all have: n of the m n entries of an axis."""
    size = x.shape[axis] // count
    return jax.lax.dynamic_slice_in_dim(x, shard_offset(size), size, axis=axis % x.ndim)


def once(function: Callable[..., jax.Array], *args: Any) -> jax.Array:
    """Calls a function of what all have on one device only; its result, integers, goes to all."""
    result = jax.eval_shape(function, *args)
    none = lambda *_: jnp.zeros(result.shape, result.dtype)  # noqa: E731
    return total(jax.lax.cond(jax.lax.axis_index(MODEL) == 0, function, none, *args))


def over_groups(x: jax.Array) -> jax.Array:
    """Returns the sum over all groups of devices."""
    return jax.lax.psum(x, DATA)


def shard_offset(size: int) -> jax.Array:
    """Returns the start of a device's part of an axis of `size` entries for each, int32."""
    return (jax.lax.axis_index(MODEL) * size).astype(jnp.int32)
