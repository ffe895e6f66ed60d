"""Helpers of kernels in Pallas: with Triton for NVIDIA GPUs, with Mosaic for TPUs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def __getattr__(name: str) -> Any:
    """Pallas' own names. It is imported where a kernel is made: that takes 0.4 s and 25 MB, which a
    CPU does not need."""
    if name.startswith("__"):
        raise AttributeError(name)  # that of another module
    from jax.experimental import pallas

    return getattr(pallas, name)


def has_triton() -> bool:
    """Returns True if JAX has Pallas' Triton backend, which later versions are going to remove."""
    try:
        from jax.experimental.pallas import triton  # noqa: F401
    except ImportError:
        return False
    return True


def multiprocessors() -> int:
    """Returns how many multiprocessors the GPU has that a kernel is made for: the one that it is
    compiled for without it, this process's, or else an H200."""
    described = jax.sharding.get_abstract_mesh().abstract_device
    if described is not None and described.num_cores:
        return described.num_cores
    return getattr(jax.local_devices()[0], "core_count", None) or 132


def load(ref: Any, mask: jax.Array, other: float = 0) -> jax.Array:
    """Reads where the mask, which is broadcast, is set; elsewhere gives `other`. Triton only."""
    from jax.experimental.pallas import triton

    return triton.load(ref, mask=jnp.broadcast_to(mask, ref.shape), other=other)


def store(ref: Any, value: jax.Array, mask: jax.Array) -> None:
    """Writes where the mask, which is broadcast, is set; rounds to the dtype of `ref`. Triton
    only."""
    from jax.experimental.pallas import triton

    triton.store(ref, value.astype(ref.dtype), mask=jnp.broadcast_to(mask, value.shape))


def every(shape: tuple[int, ...], *indices: jax.Array) -> tuple[jax.Array, ...]:
    """Indices for every number of a shape: Pallas has no mixture of arrays and slices."""
    return tuple(jnp.broadcast_to(index, shape) for index in indices)


def dot(a: jax.Array, b: jax.Array, axis: int = 0) -> jax.Array:
    """Sums over the last axis of a and an axis of b, in float32."""
    # There is no product of bfloat16 numbers with a higher precision, which callers may ask for.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    dimensions = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(
        a, b, dimensions, precision=precision, preferred_element_type=jnp.float32
    )
