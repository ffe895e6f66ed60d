"""The attention kernels, in their interpreters or in the C++ core, against plain JAX."""

import dataclasses
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from attention_inputs import AttentionShape, attention_arrays, paged_arrays
from native_pages import grouped
from needs import NATIVE
from needs import native as needs_native

from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.native import rotated_heads_native
from dart_jax.models.attention.segments import Scoring, Segment, attend_dense, split_heads
from dart_jax.models.attention.triton import _Grid
from dart_jax.models.attention.triton_heads import HeadNorm, rotated_heads_triton
from dart_jax.models.cpu import only_rows
from dart_jax.models.kernels.inputs import Normed
from dart_jax.models.rope import Rope, rotate

SHAPES = [
    AttentionShape(1, 8, 2, 5, 640),  # several splits; two blocks of keys, the second not full
    AttentionShape(1, 14, 2, 1, 1300, window=700),
    AttentionShape(2, 4, 1, 9, 300, 128, cap=20.0),
    AttentionShape(2, 4, 4, 3, 200, 64, window=50),
    AttentionShape(3, 8, 2, 61, 70, dtype="bfloat16"),
    AttentionShape(1, 4, 2, 130, 64),  # two blocks of queries
    AttentionShape(1, 2, 1, 20, 100, 256),
]
PAGES = [
    (AttentionShape(2, 4, 2, 5, 200), 64),
    (AttentionShape(3, 4, 2, 3, 40, 16), 1),
    (AttentionShape(1, 6, 2, 9, 150, cap=20.0), 24),  # blocks of keys in several pages
    (AttentionShape(2, 2, 1, 4, 170, window=50), 16),
    (AttentionShape(1, 2, 1, 128, 96, 64, window=20), 8),  # a prompt's chunk
    (AttentionShape(1, 8, 2, 5, 640), 128),  # several splits
]
EDGES = [0, 1, 15, 16, 511, 512, 513, 640]  # of blocks
CASES = [
    *((shape, None, None) for shape in SHAPES),
    *((shape, size, None) for shape, size in PAGES),
    *((AttentionShape(2, 4, 2, 5, 640), None, length) for length in EDGES),
]


@pytest.mark.long(keep=6)
@pytest.mark.parametrize("kernel", ["interpret", "interpret-mosaic", NATIVE, "dense"])
@pytest.mark.parametrize(("shape", "size", "length"), CASES, ids=str)
def test_a_kernel_against_plain_jax(kernel, shape, size, length):
    """Rows beyond a sequence are NaN for the kernel: it never reads them."""
    if kernel == "native":
        shape = dataclasses.replace(shape, dtype="float32")
    if size is None:
        new, filled, undefined = attention_arrays(shape, 0, length)
        undefined = filled if kernel == "dense" else undefined
    else:
        new, undefined, filled = paged_arrays(shape, size, 0)
        if kernel == "native":
            (k, v), *_ = grouped([(undefined.k, undefined.v)])
            undefined = undefined._replace(k=jnp.asarray(k), v=jnp.asarray(v))
    scoring = Scoring(cap=shape.cap)
    expected = attend([new], filled, scoring)
    got = attend([new], undefined, scoring, kernel)
    assert got.dtype == expected.dtype
    tolerance = 2e-6 if shape.dtype == "float32" else 0.02
    one, other = (np.asarray(x, np.float32) for x in (got, expected))
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    if kernel in ("dense", "native"):  # a row's bits do not depend on its place
        np.testing.assert_array_equal(got, attend([new], filled, scoring, kernel))


def test_rows_that_nobody_computed_do_not_matter():
    """They may hold NaN; also without a cache."""
    new, prefix, _ = attention_arrays(AttentionShape(1, 4, 2, 5, 30), 0)
    new = new._replace(mask=jnp.tril(jnp.ones((1, 5, 5), bool)))
    unused = jnp.arange(5)[:, None] >= 3
    damaged = new._replace(k=jnp.where(unused, jnp.nan, new.k), v=jnp.where(unused, jnp.nan, new.v))
    for seen in (None, prefix):
        with only_rows(jnp.int32(3)):
            got = attend([damaged], seen)
        np.testing.assert_array_equal(got[:, :3], attend([new], seen)[:, :3])


def test_what_the_core_has_not_written_does_not_matter():
    """Where it does not compute the head size, either, and a pool has one page."""
    new, filled, undefined = attention_arrays(AttentionShape(1, 4, 2, 5, 30, head_dim=8), 0)
    assert np.isnan(undefined.v).any()
    undefined = undefined._replace(pages=jnp.zeros((1, 1), jnp.int32))
    got = attend([new], undefined, kernel="native")
    np.testing.assert_array_equal(got, attend([new], filled))


@needs_native
@pytest.mark.parametrize("size", [None, 24])
def test_keys_and_values_in_bfloat16(size):
    """Queries and weights are rounded to it, too; sums are float32."""
    shape = AttentionShape(2, 4, 2, 9, 200)
    arrays = attention_arrays(shape, 0) if size is None else paged_arrays(shape, size, 0)

    def stored(rows, dtype):
        return rows._replace(k=rows.k.astype(dtype), v=rows.v.astype(dtype))

    new, cached, other = (stored(rows, jnp.bfloat16) for rows in arrays)
    filled = cached if size is None else other
    got = attend([new], cached, kernel="native")
    rounded = new._replace(q=new.q.astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_array_equal(got, attend([rounded], cached, kernel="native"))
    wide, wide_cached = stored(rounded, jnp.float32), stored(filled, jnp.float32)
    expected = attend([wide], wide_cached)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2**-8 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("kernel", "head_dim"),
    [
        ("interpret", 80),
        ("interpret-mosaic", 40),
        pytest.param("native", 40, marks=needs_native),
    ],
)
def test_sizes_that_kernels_leave_to_plain_jax(kernel, head_dim):
    new, filled, _ = attention_arrays(AttentionShape(1, 2, 1, 3, 20, head_dim), 0)
    np.testing.assert_array_equal(attend([new], filled, kernel=kernel), attend([new], filled))


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("offset", [None, 1.0, "no norm"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(5, 1, 64), (2, 2, 128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", ["interpret", NATIVE])
def test_heads_by_a_kernel_are_those_of_the_layers(
    kernel, dtype, heads, kv_heads, head_dim, offset
):
    """The norms before RoPE as the layers compute them; the C++ core's in float32."""
    dtype = "float32" if kernel == "native" else dtype
    rng = np.random.default_rng(3)
    width = (heads + 2 * kv_heads) * head_dim
    qkv = jnp.asarray(rng.normal(size=(2, 19, width)), dtype)
    positions = jnp.asarray(rng.integers(0, 4000, (2, 19)), jnp.int32)
    rope, ends = Rope(1e4), [heads * head_dim, (heads + kv_heads) * head_dim]
    q, k, v = map(split_heads, jnp.split(qkv, ends, axis=-1), (heads, kv_heads, kv_heads))
    norm = None
    if offset != "no norm":
        scales = jnp.asarray(rng.normal(1, 0.3, (2, head_dim)), dtype)
        norm = HeadNorm(*scales, 1e-6, offset)
        q, k = (
            Normed(x, scale, 1e-6, offset).computed()
            for x, scale in zip((q, k), scales, strict=True)
        )
    expected = rotate(q, positions, rope), rotate(k, positions, rope), v
    run = rotated_heads_native
    if kernel == "interpret":
        run = partial(rotated_heads_triton, interpret=True)
    got = run(qkv, *rope.rotation(positions, head_dim), heads, kv_heads, norm)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype
        ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(got[2], v)


def test_blocks_fit_into_shared_memory():
    """Queries, and keys and values twice: 99 KB, that of the smallest GPU with compute capability
    8."""
    for size in (2 * 16, 2 * 64, 2 * 128, 2 * 256, 4 * 256):
        grid = _Grid.of(heads=8, rows=500, capacity=8192, size=size)
        assert (grid.rows + 4 * grid.keys) * size <= 99 * 1024


def test_segments_and_a_prefix_are_one_softmax():
    """EAGLE-3's rows see the newest real rows, the drafted rows and the cache."""
    new, prefix, _ = attention_arrays(SHAPES[3], 0)
    other, *_ = attention_arrays(SHAPES[3], 1)
    one_row = other._replace(q=new.q, mask=jnp.ones((1, 1, 3), bool))
    cached = Segment(new.q, prefix.k, prefix.v, prefix.mask)
    expected = attend_dense([cached, one_row, new])
    np.testing.assert_array_equal(attend([one_row, new], prefix), expected)
    got = attend([one_row, new], prefix, kernel="interpret")
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)
