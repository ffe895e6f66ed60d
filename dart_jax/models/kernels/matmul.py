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
    by = _power(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
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
    return _matmul(jnp.dtype(dtype), x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul(dtype: jnp.dtype, x: jax.Array, kernel: jax.Array) -> jax.Array:
    x, by = factor(x, kernel.dtype)
    return scaled(jnp.einsum("...d,dv->...v", x, kernel, preferred_element_type=dtype), by)


_Kept = tuple[jax.Array, jax.Array | None, jax.Array]


def _forward(dtype: jnp.dtype, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, _Kept]:
    x, by = factor(x, kernel.dtype)
    y = scaled(_sums("rd,dv->rv", _rows(x), kernel, dtype).reshape(*x.shape[:-1], -1), by)
    return y, (x, by, kernel)


def _backward(dtype: jnp.dtype, kept: _Kept, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, by, kernel = kept
    rows, to = _rows(x), x.dtype if by is None else jnp.float32
    if kernel.dtype == jnp.float16:
        # Each row's gradient is scaled for the product with the kernel; for that with the rows,
        # whose sum is over them, all gradients alike.
        of_rows, size = factor(_rows(gradient.astype(jnp.float32)), kernel.dtype)
        all_rows = _rows(scaled(gradient.astype(jnp.float32), by))
        largest = _power(jnp.max(jnp.abs(all_rows)))
        of_kernel = _product_of_columns(rows, (all_rows / largest).astype(x.dtype), jnp.float32)
        of_kernel = narrowed(of_kernel * largest, kernel.dtype)
    else:
        of_rows, size = _rows(gradient.astype(x.dtype)), None
        of_kernel = _product_of_columns(rows, of_rows, kernel.dtype)
    of_x = scaled(_sums("rv,dv->rd", of_rows, kernel, jnp.float32), size)
    return narrowed(of_x, to).astype(to).reshape(x.shape), of_kernel


def _product_of_columns(rows: jax.Array, gradient: jax.Array, dtype: DTypeLike) -> jax.Array:
    """[r, in] and [r, out] -> [in, out]."""
    if jax.default_backend() != "cpu":
        return _sums("rd,rv->dv", rows, gradient, dtype)
    # XLA multiplies bfloat16 as such only if the first factor's rows are contracted; it would
    # fold a transposition of the whole factor into the product.
    middle = len(rows) // 2
    columns = jnp.concatenate([rows[:middle].T, rows[middle:].T], axis=1)
    return _sums("dr,rv->dv", columns, gradient, dtype)


def _sums(indices: str, a: jax.Array, b: jax.Array, dtype: DTypeLike) -> jax.Array:
    return jnp.einsum(indices, a, b, preferred_element_type=jnp.float32).astype(dtype)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


def _power(x: jax.Array) -> jax.Array:
    """The largest powers of two that are not above positive numbers."""
    bits = jax.lax.bitcast_convert_type(jnp.maximum(x, _SMALLEST), jnp.int32)
    return jax.lax.bitcast_convert_type(bits & 0x7F800000, jnp.float32)


_matmul.defvjp(_forward, _backward)
