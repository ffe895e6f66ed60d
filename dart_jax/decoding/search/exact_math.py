"""The core's elementary functions (native/include/dart/exact_math.h) in JAX, bit for bit.

Compilers may fuse a product with the sum it enters, which rounds once instead of twice. A minimum
with a bound that no product reaches keeps them apart; products that are exact need none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_LOGARITHM = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_EXPONENTIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_HIGH, _LOW = np.float32(0.693359375), np.float32(2.12194440e-4)  # log(2) is their difference
_BOUND = np.float32(3e38)


def product(a: jax.Array, b: jax.Array | np.float32) -> jax.Array:
    """a * b, rounded before anything is added; below 3e38."""
    return jnp.minimum(a * b, _BOUND)


def logarithm(x: jax.Array) -> jax.Array:
    """The natural logarithm of positive normal numbers, float32."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    mantissa = jax.lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32)
    f, exponent = mantissa - np.float32(1), exponent.astype(jnp.float32)
    square = f * f
    y = product(_polynomial(_LOGARITHM, f) * f, square)
    y = y - product(exponent, _LOW) - np.float32(0.5) * square
    return f + y + _HIGH * exponent


def exponential(x: jax.Array) -> jax.Array:
    """The exponential function of float32 numbers; of those above 88 as of 88."""
    inside = jnp.clip(x, np.float32(-87.3), np.float32(88))
    shift = np.float32(1.5 * 2**23 + 127)
    # The minimum keeps the two shifts from being added to each other.
    shifted = jnp.minimum(product(inside, np.float32(1.44269504)) + shift, _BOUND)
    n = shifted - shift
    rest = (inside - n * _HIGH) + product(n, _LOW)
    power = product(_polynomial(_EXPONENTIAL, rest), rest * rest) + rest + np.float32(1)
    scale = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(shifted, jnp.int32) << 23, jnp.float32
    )
    return jnp.where(x < np.float32(-87.3), np.float32(0), power * scale)


def reciprocal(x: jax.Array) -> jax.Array:
    """1 / x for float32 numbers from 2^-100 to 2^100. (The division of GPUs rounds differently.)"""
    bits = np.int32(0x7EF311C7) - jax.lax.bitcast_convert_type(x, jnp.int32)
    y = jax.lax.bitcast_convert_type(bits, jnp.float32)
    for _ in range(4):  # Newton's method
        y = y + product(y, np.float32(1) - product(x, y))
    return y


def sum_in_halves(x: jax.Array) -> jax.Array:
    """The sum over the last axis: the upper half is added to the lower one, again and again."""
    size = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
    while size > 1:
        size //= 2
        x = x[..., :size] + x[..., size:]
    return x[..., 0]


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    y = product(x, np.float32(coefficients[0])) + np.float32(coefficients[1])
    for coefficient in coefficients[2:]:
        y = product(y, x) + np.float32(coefficient)
    return y
