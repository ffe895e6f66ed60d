"""The attention kernel for TPUs in its interpreter against plain JAX."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.segments import Prefix, Scoring, Segment


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    kv_heads: int
    rows: int
    capacity: int
    head_dim: int = 64
    window: int | None = None
    cap: float | None = None
    dtype: str = "float32"


SHAPES = [
    Shape(2, 4, 2, 5, 640),  # two blocks of keys, the second not full
    Shape(1, 14, 2, 1, 1300, window=700),
    Shape(2, 4, 1, 9, 300, 128, cap=20.0),
    Shape(3, 8, 2, 61, 70, dtype="bfloat16"),
    Shape(1, 4, 2, 130, 64),  # two blocks of queries
    Shape(1, 2, 1, 20, 100, 256),
]


def arrays(shape, seed, length=None):
    """New rows, and a prefix that is NaN where it is not filled."""
    rng = np.random.default_rng(seed)

    def normal(*size):
        return jnp.asarray(rng.standard_normal(size), shape.dtype)

    b, t, h = shape.batch, shape.rows, shape.head_dim
    mask = np.tril(rng.random((b, t, t)) < 0.5) | np.eye(t, dtype=bool)
    new = Segment(
        normal(b, shape.heads, t, h),
        normal(b, shape.kv_heads, t, h),
        normal(b, shape.kv_heads, t, h),
        jnp.asarray(mask),
    )
    if length is None:
        length = rng.integers(0, shape.capacity + 1, b)
    length = jnp.broadcast_to(jnp.asarray(length, jnp.int32), (b,))
    first = None
    if shape.window is not None:
        positions = length[:, None] + jnp.arange(t, dtype=jnp.int32)[None]
        first = jnp.maximum(positions - shape.window + 1, 0)
    empty = (jnp.arange(shape.capacity)[None] >= length[:, None])[:, None, :, None]
    k, v = (normal(b, shape.kv_heads, shape.capacity, h) for _ in range(2))
    filled = Prefix(jnp.where(empty, 0, k), jnp.where(empty, 0, v), length, first)
    return (
        new,
        filled,
        filled._replace(k=jnp.where(empty, jnp.nan, k), v=jnp.where(empty, jnp.nan, v)),
    )


def compare(shape, seed, length=None):
    new, filled, undefined = arrays(shape, seed, length)
    scoring = Scoring(None, shape.cap)
    expected = attend([new], filled, scoring)
    got = attend([new], undefined, scoring, "interpret-mosaic")
    assert got.dtype == expected.dtype
    tolerance = 2e-6 if shape.dtype == "float32" else 0.02
    np.testing.assert_allclose(
        np.asarray(got, np.float32), np.asarray(expected, np.float32), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_against_plain_jax(shape):
    """Nothing that is not filled matters, and the blocks of keys and queries make no difference."""
    compare(shape, 0)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 640])
def test_lengths_at_the_edges_of_blocks(length):
    compare(SHAPES[0], 1, length)


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 20), st.integers(1, 90), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_any_sizes(rows, capacity, window, seed):
    compare(Shape(1, 2, 1, rows, capacity, window=window), seed)


@pytest.mark.parametrize("head_dim", [16, 80])
def test_other_head_sizes_are_left_to_plain_jax(head_dim):
    new, filled, _ = arrays(Shape(1, 2, 1, 3, 20, head_dim), 0)
    got = attend([new], filled, kernel="interpret-mosaic")
    np.testing.assert_array_equal(got, attend([new], filled))
