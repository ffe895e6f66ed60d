"""The attention kernel for TPUs, in its interpreter, and the C++ core's against plain JAX."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_jax import _core
from dart_jax.models.attention import native
from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.heads import HeadNorm
from dart_jax.models.attention.segments import Scoring, split_heads
from dart_jax.models.cpu.foreign import available
from dart_jax.models.layers import RMSNorm
from dart_jax.models.rope import Rope, rotate
from tests.support.attention_inputs import AttentionShape, attention_arrays

SHAPES = [
    AttentionShape(2, 4, 2, 5, 640),  # two blocks of keys, the second not full
    AttentionShape(1, 14, 2, 1, 1300, window=700),
    AttentionShape(2, 4, 1, 9, 300, 128, cap=20.0),
    AttentionShape(3, 8, 2, 61, 70, dtype="bfloat16"),
    AttentionShape(1, 4, 2, 130, 64),  # two blocks of queries
    AttentionShape(1, 2, 1, 20, 100, 256),
]

NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(
        not _core.cpu_ffi_handlers or not available(), reason="built without jaxlib's headers"
    ),
)
both = pytest.mark.parametrize("kernel", ["interpret-mosaic", NATIVE])


def compare(shape, seed, kernel, length=None):
    new, filled, undefined = attention_arrays(shape, seed, length)
    scoring = Scoring(None, shape.cap)
    expected = attend([new], filled, scoring)
    got = attend([new], undefined, scoring, kernel)
    assert got.dtype == expected.dtype
    tolerance = 2e-6 if shape.dtype == "float32" else 0.02
    np.testing.assert_allclose(
        np.asarray(got, np.float32), np.asarray(expected, np.float32), rtol=0, atol=tolerance
    )


@pytest.mark.long(keep=2)
@both
@pytest.mark.parametrize("shape", SHAPES)
def test_a_kernel_against_plain_jax(shape, kernel):
    """Nothing that is not filled matters, and the blocks of keys and queries make no difference."""
    if kernel == "native":
        shape = dataclasses.replace(shape, dtype="float32", rows=min(shape.rows, 128))
    compare(shape, 0, kernel)


@both
@pytest.mark.parametrize("length", [0, 1, 15, 16, 511, 512, 513, 640])
def test_lengths_at_the_edges_of_blocks(length, kernel):
    compare(SHAPES[0], 1, kernel, length)


@pytest.mark.long(ci=1)
@both
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 20), st.integers(1, 90), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_any_sizes(kernel, rows, capacity, window, seed):
    compare(AttentionShape(1, 2, 1, rows, capacity, window=window), seed, kernel)


@both
@pytest.mark.parametrize("head_dim", [24, 40])
def test_other_head_sizes_are_left_to_plain_jax(head_dim, kernel):
    new, filled, _ = attention_arrays(AttentionShape(1, 2, 1, 3, 20, head_dim), 0)
    got = attend([new], filled, kernel=kernel)
    np.testing.assert_array_equal(got, attend([new], filled))


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(
    "shape", [AttentionShape(1, 2, 1, 200, 300), AttentionShape(1, 2, 1, 2, 9, dtype="bfloat16")]
)
def test_many_rows_and_bfloat16_are_left_to_plain_jax(shape):
    new, filled, _ = attention_arrays(shape, 0)
    assert not native.fits(new.q, filled)
    got = attend([new], filled, kernel="native")
    np.testing.assert_array_equal(got, attend([new], filled))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(5, 1, 64), (4, 2, 16), (2, 2, 128)])
@pytest.mark.skipif(not available(), reason="built without jaxlib's headers")
def test_native_heads(heads, kv_heads, head_dim, normed):
    rng = np.random.default_rng(0)
    width = (heads + 2 * kv_heads) * head_dim
    qkv = jnp.asarray(rng.standard_normal((2, 7, width)), jnp.float32)
    positions = jnp.asarray(rng.integers(0, 4000, (2, 7)), jnp.int32)
    rope = Rope(10000.0)
    ends = heads * head_dim, (heads + kv_heads) * head_dim
    q, k, v = jnp.split(qkv, ends, axis=-1)
    q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    norm = None
    if normed:
        norms = [RMSNorm(head_dim, 1e-6, dtype=jnp.float32) for _ in range(2)]
        for each in norms:
            each.scale = nnx.Param(jnp.asarray(rng.standard_normal(head_dim), jnp.float32))
        q, k = norms[0](q), norms[1](k)
        norm = HeadNorm(norms[0].scale[...], norms[1].scale[...], 1e-6, None)
    expected = rotate(q, positions, rope), rotate(k, positions, rope), v
    cos, sin = rope.rotation(positions, head_dim)
    got = native.rotated_heads_native(qkv, cos, sin, heads, kv_heads, norm)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-6)
