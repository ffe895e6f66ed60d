"""Products of rows and a matrix, whose gradients are products in the same dtype.

JAX differentiates a product of bfloat16 with sums in float32 by products of float32, which take
twice the time or more. Here the cotangent is rounded to the dtype of the factors first, as if the
sums were; the gradients' own sums are float32 until they are rounded to it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def matmul(x: jax.Array, kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
    """[..., in] @ [in, out] -> [..., out] of a dtype: that of both, or float32, the sums."""
    return _matmul(jnp.dtype(dtype), x, kernel)


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
    rows, gradient = _rows(x), _rows(gradient.astype(x.dtype))
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
    return jnp.einsum(indices, a, b, preferred_element_type=jnp.float32).astype(dtype)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


_matmul.defvjp(_forward, _backward)
