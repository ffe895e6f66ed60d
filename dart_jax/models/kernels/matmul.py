"""Products of rows and a matrix, whose gradients are products in the same dtype.

With matrices in float16 all else is float32: residual streams exceed 65,504. Rows are rounded
to float16 when they are multiplied, and the sums are not.

JAX differentiates a product of bfloat16 with sums in float32 by products of float32, which take
twice the time or more. Here the cotangent is rounded to the dtype of the factors first, as if the
sums were; the gradients' own sums are float32 until they are rounded to it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

_LARGEST, _SMALLEST = float(np.finfo(np.float16).max), 1e-30


def activations(dtype: DTypeLike) -> np.dtype:
    """Returns the dtype of activations, norms and biases beside matrices of a dtype."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def cast(params: Any, dtype: DTypeLike) -> Any:
    """Returns parameters with matrices in a dtype, and vectors in that of its activations."""
    beside = activations(dtype)
    return jax.tree.map(lambda p: p.astype(beside if p.ndim < 2 else dtype), params)


def factor(x: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array | None]:
    """Returns rows [..., in] as they are multiplied with a matrix of a dtype, and what the sums are
    then to be multiplied by, if anything, float32 [..., 1].

    In float16 each row is divided by a power of two first, so that its largest number is between
    1 and 2: no number is too large, and only those that hardly count are too small.
    """
    if dtype != jnp.float16 or x.dtype == jnp.float16:
        return x, None
    largest = jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), _SMALLEST)
    exponent = jax.lax.bitcast_convert_type(largest, jnp.int32) & 0x7F800000
    by = jax.lax.bitcast_convert_type(exponent, jnp.float32)
    return (x / by).astype(dtype), by


def scaled(y: jax.Array, by: jax.Array | None) -> jax.Array:
    """Multiplies sums [..., out] by what `factor` returned."""
    return y if by is None else y * by


def narrowed(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Returns numbers whose size is known to be moderate as they are multiplied with a matrix of a
    dtype, or cached: float16 if that is, where those beyond its range are at its ends."""
    if dtype != jnp.float16 or x.dtype == jnp.float16:
        return x
    return jnp.clip(x, -_LARGEST, _LARGEST).astype(dtype)


def matmul(x: jax.Array, kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
    """[..., in] @ [in, out] -> [..., out] of a dtype: that of both, or float32, the sums."""
    x, by = factor(x, kernel.dtype)
    return scaled(_matmul(jnp.dtype(dtype), x, kernel), by)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul(dtype: jnp.dtype, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.einsum("...d,dv->...v", x, kernel, preferred_element_type=dtype)


def _forward(
    dtype: jnp.dtype, x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _sums("rd,dv->rv", _rows(x), kernel, dtype).reshape(*x.shape[:-1], -1), (x, kernel)


def _backward(
    dtype: jnp.dtype, factors: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = factors
    rows, gradient = _rows(x), _rows(narrowed(gradient, x.dtype).astype(x.dtype))
    if jax.default_backend() == "cpu":
        # XLA multiplies bfloat16 as such only if the first factor's rows are contracted; it would
        # fold a transposition of the whole factor into the product.
        middle = len(rows) // 2
        columns = jnp.concatenate([rows[:middle].T, rows[middle:].T], axis=1)
        of_kernel = _sums("dr,rv->dv", columns, gradient, kernel.dtype)
    else:
        of_kernel = _sums("rd,rv->dv", rows, gradient, kernel.dtype)
    return _sums("rv,dv->rd", gradient, kernel, x.dtype).reshape(x.shape), of_kernel


def _sums(indices: str, a: jax.Array, b: jax.Array, dtype: DTypeLike) -> jax.Array:
    sums = jnp.einsum(indices, a, b, preferred_element_type=jnp.float32)
    return narrowed(sums, dtype).astype(dtype)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


_matmul.defvjp(_forward, _backward)
