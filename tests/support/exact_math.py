"""The core's elementary functions (native/include/dart/exact_math.h) in numpy."""

import numpy as np

f32 = np.float32

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
_HIGH, _LOW = f32(0.693359375), f32(2.12194440e-4)  # log(2) is their difference


def logarithm(x):
    """Of positive normal numbers, float32."""
    bits = np.asarray(x, f32).view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    f = (bits - (exponent << 23)).view(f32) - f32(1)
    exponent, square = exponent.astype(f32), f * f
    y = _polynomial(_LOGARITHM, f)
    y = y * f * square - _LOW * exponent - f32(0.5) * square
    return f + y + _HIGH * exponent


def exponential(x):
    """Of float32 numbers; of those above 88 as of 88."""
    x = np.asarray(x, f32)
    inside = np.clip(x, f32(-87.3), f32(88))
    shift = f32(1.5 * 2**23 + 127)
    shifted = inside * f32(1.44269504) + shift
    n = shifted - shift
    rest = (inside - n * _HIGH) + n * _LOW
    power = _polynomial(_EXPONENTIAL, rest) * (rest * rest) + rest + f32(1)
    return np.where(x < f32(-87.3), f32(0), power * (shifted.view(np.int32) << 23).view(f32))


def reciprocal(x):
    """1 / x for float32 numbers from 2^-100 to 2^100."""
    x = np.asarray(x, f32)
    y = (np.int32(0x7EF311C7) - x.view(np.int32)).view(f32)
    for _ in range(4):
        y = y + y * (f32(1) - x * y)
    return y


def sum_in_halves(x):
    """The sum of float32 [n]: the upper half is added to the lower one, again and again."""
    size = 1 << max(len(x) - 1, 0).bit_length()
    x = np.append(np.asarray(x, f32), np.zeros(size - len(x), f32))
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def _polynomial(coefficients, x):
    y = f32(coefficients[0])
    for coefficient in coefficients[1:]:
        y = y * x + f32(coefficient)
    return y
