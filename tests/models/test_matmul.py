"""Products of training: gradients in the dtype of their factors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.models.kernels.matmul import matmul


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("out", [jnp.float32, None], ids=["sums", "rounded"])
@pytest.mark.parametrize("rows", [(1,), (2, 5)])
def test_gradients_are_those_of_the_rounded_factors(dtype, out, rows):
    """With any number of rows; sums are float32, and each result is rounded once."""
    rng = np.random.default_rng(0)
    x, kernel, weight = (
        jnp.asarray(rng.normal(size=shape), dtype) for shape in ((*rows, 7), (7, 9), (*rows, 9))
    )

    def loss(product, x, kernel):
        return jnp.sum(product(x, kernel).astype(jnp.float32) * weight.astype(jnp.float32))

    ours = jax.jit(
        jax.grad(lambda x, kernel: loss(lambda a, b: matmul(a, b, out or dtype), x, kernel), (0, 1))
    )(x, kernel)
    exact = jax.grad(lambda x, kernel: loss(jnp.matmul, x, kernel), (0, 1))(
        *(each.astype(jnp.float32) for each in (x, kernel))
    )
    for our, expected in zip(ours, exact, strict=True):
        assert our.dtype == dtype
        if dtype == jnp.float32:
            np.testing.assert_allclose(our, expected, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(our, expected.astype(dtype))


@pytest.mark.parametrize("size", [1e-7, 1.0, 1e7])
def test_rows_of_any_size_are_multiplied_with_float16(size):
    """Beside a matrix in float16 rows are float32, and rounded to 11 bits of their own size;
    gradients pass."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(size * rng.normal(size=(5, 64)), jnp.float32).at[0].set(0)
    kernel = jnp.asarray(rng.normal(size=(64, 9)), jnp.float16)
    weight = jnp.asarray(rng.normal(size=(5, 9)), jnp.float32)

    def loss(product, x, kernel):
        return jnp.sum(product(x, kernel) * weight)

    y = jax.jit(lambda x: matmul(x, kernel, jnp.float32))(x)
    wide = kernel.astype(jnp.float32)
    np.testing.assert_allclose(y, x @ wide, rtol=0, atol=0.01 * size)
    ours = jax.jit(jax.grad(lambda x: loss(lambda a, b: matmul(a, b, jnp.float32), x, kernel)))(x)
    exact = jax.grad(lambda x: loss(jnp.matmul, x, wide))(x)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=0.05)
