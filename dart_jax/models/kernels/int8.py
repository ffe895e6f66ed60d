"""Weights in 8 bits for XLA: each output of a matrix has a scale, which multiplies the product.

The values are converted where they are multiplied, so that a step reads one byte a weight; on GPUs
and TPUs XLA fuses the two. CPUs have a form of their own (`kernels.tiles`), which the C++ core
reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.kernels.matmul import activations, factor, matmul, scaled

Path = tuple[str | int, ...]
_LARGEST = 127  # magnitude of a value
# Layers that stay as they are: they are small, and choose experts.
EXACT = ("router", "shared_expert_gate")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8:
    """A matrix in 8 bits, or one for each expert: a weight is about its value times its scale.

    Attributes:
      values: int8 [..., in, out], from -127 to 127.
      scale: float32 [..., out].
      dtype: in which values are multiplied.
    """

    values: jax.Array
    scale: jax.Array
    dtype: np.dtype = dataclasses.field(default=np.dtype(np.float32), metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The matrix's: [..., in, out]."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Its number of axes."""
        return self.values.ndim

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.values.size


Kernel = jax.Array | Int8


@partial(jax.jit, static_argnames="transposed")
def round_kernel(kernel: jax.Array, transposed: bool = False) -> Int8:
    """Rounds a matrix [..., in, out], or [out, in] if `transposed`: of each output's weights the
    largest becomes 127 or -127."""
    dtype = kernel.dtype
    kernel = (kernel.T if transposed else kernel).astype(jnp.float32)
    magnitude = jnp.max(jnp.abs(kernel), axis=-2)
    some = magnitude > 1e-30  # below, numbers are 0: dividing by them might overflow
    by = jnp.where(some, _LARGEST / magnitude, 0)
    values = jnp.round(kernel * by[..., None, :]).astype(jnp.int8)
    return Int8(values, jnp.where(some, magnitude / _LARGEST, 0), dtype)


def round_one(path: Sequence[str | int], value: Kernel) -> Kernel:
    """Rounds a parameter of this path if it is a linear layer's or experts' matrix and not yet
    rounded."""
    if isinstance(value, Int8) or any(name in path for name in EXACT):
        return value
    return round_kernel(value) if path[-1] == "kernel" or "experts" in path else value


def round_params(params: dict[str, Any]) -> dict[str, Any]:
    """Rounds the matrices of a model that are not yet, as `changed` does."""
    return changed(params, round_one)


def changed(
    params: dict[str, Any], change: Callable[[Path, Any], Any], path: Path = ()
) -> dict[str, Any]:
    """Changes parameters, given their paths, one after another; drops them from `params` on the
    way, so that memory holds one of them twice."""
    result: dict[str, Any] = {}
    for name in [*params]:
        value, at = params.pop(name), (*path, name)
        nested = isinstance(value, dict)
        result[name] = changed(value, change, at) if nested else change(at, value)
    return result


def times(x: jax.Array, kernel: Kernel) -> jax.Array:
    """[..., in] @ [in, out] -> [..., out], of the dtype of activations."""
    if isinstance(kernel, Int8):
        return sums(x, kernel).astype(activations(x.dtype))
    return matmul(x, kernel, activations(x.dtype))


def sums(x: jax.Array, kernel: Kernel) -> jax.Array:
    """As `times`, but float32: the sums before they are rounded."""
    if not isinstance(kernel, Int8):
        return matmul(x, kernel, jnp.float32)
    x, by = factor(x, kernel.dtype)
    y = matmul(x, kernel.values.astype(x.dtype), jnp.float32)
    return scaled(y * kernel.scale.reshape((1,) * (y.ndim - 1) + kernel.scale.shape), by)
