"""The attention kernels in their interpreters against plain JAX."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MAX_LENGTH, SEED
from decoding import Options, Prompts, generate, generate_stepwise

from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.compaction import append as append_by
from dart_jax.models.attention.dense import attend_dense
from dart_jax.models.attention.flash import _Grid
from dart_jax.models.attention.heads import HeadNorm, rotated_heads
from dart_jax.models.attention.segments import Scoring, Segment, split_heads
from dart_jax.models.cache import append
from dart_jax.models.layers import RMSNorm
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.fusion import fuse
from dart_jax.models.rope import Rope, rotate
from tests.support.attention_inputs import AttentionShape, attention_arrays
from tests.support.tiny_configs import copied

GPU = Execution("interpret", least_rows=8, fused=True, experts="interpret")

SHAPES = [
    AttentionShape(1, 8, 2, 5, 640, 64),  # several splits
    # Seven heads to a key head, splits in a window.
    AttentionShape(1, 14, 2, 1, 1300, 32, window=700),
    AttentionShape(2, 4, 1, 9, 300, 128, cap=20.0),
    AttentionShape(2, 4, 4, 3, 200, 16, window=50),
    AttentionShape(3, 8, 2, 61, 70, 64, dtype="bfloat16"),  # several blocks of queries
    AttentionShape(1, 4, 2, 130, 64, 16),  # new keys of several blocks
    AttentionShape(1, 2, 1, 20, 100, 256),  # smaller blocks
]


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_computes_what_plain_jax_does(shape):
    scoring = Scoring(cap=shape.cap)
    for seed in range(2):
        new, prefix, _ = attention_arrays(shape, seed)
        expected = attend([new], prefix, scoring)
        got = attend([new], prefix, scoring, "interpret")
        assert got.dtype == expected.dtype
        tolerance = 2e-6 if shape.dtype == "float32" else 2e-2
        got, expected = (np.asarray(x, np.float32) for x in (got, expected))
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("offset", [None, 1.0, "no norm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_by_the_kernel_are_those_of_the_layers(offset, dtype):
    """19 rows of 3 query heads for 1 key head; the norms before RoPE as the layers compute them."""
    rng = np.random.default_rng(3)
    b, t, heads, kv_heads, h = 2, 19, 3, 1, 32
    qkv = jnp.asarray(rng.normal(size=(b, t, (heads + 2 * kv_heads) * h)), dtype)
    positions = jnp.asarray(rng.integers(0, 500, (b, t)), jnp.int32)
    rope = Rope(1e4)
    q, k, v = jnp.split(qkv, [heads * h, (heads + kv_heads) * h], axis=-1)
    q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    norm = None
    if offset != "no norm":
        scales = jnp.asarray(rng.normal(1, 0.3, (2, h)), dtype)
        norms = [RMSNorm(h, 1e-6, dtype=dtype, offset=offset) for _ in scales]
        for each, scale in zip(norms, scales, strict=True):
            each.scale[...] = scale
        q, k = norms[0](q), norms[1](k)
        norm = HeadNorm(*scales, 1e-6, offset)
    expected = rotate(q, positions, rope), rotate(k, positions, rope), v
    rotation = rope.rotation(positions, h)
    got = rotated_heads(qkv, *rotation, heads, kv_heads, norm, interpret=True)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype
        ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(got[2], v)


def test_one_sequence_fills_the_gpu_and_many_are_not_split():
    size = 128 * 2
    alone = _Grid.of(heads=8, rows=244, capacity=8192, size=size)
    assert alone.splits > 1
    assert 132 <= 8 * alone.row_blocks * alone.splits <= 264
    assert _Grid.of(heads=8 * 32, rows=244, capacity=8192, size=size).splits == 1
    assert _Grid.of(heads=8, rows=244, capacity=64, size=size).splits == 1


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_blocks_fit_into_shared_memory(head_dim, itemsize):
    """Queries, and keys and values twice: 99 KB, that of the smallest GPU with compute capability
    8."""
    size = head_dim * itemsize
    grid = _Grid.of(heads=8, rows=500, capacity=8192, size=size)
    assert (grid.rows + 4 * grid.keys) * size <= 99 * 1024


def test_rows_beyond_a_sequence_are_never_read():
    """Whatever they hold: the kernel's result does not even become NaN."""
    new, prefix, _ = attention_arrays(SHAPES[2], 0)
    beyond = ~prefix._replace(first=None).mask[:, :, :, None]
    spoiled = prefix._replace(
        k=jnp.where(beyond, jnp.nan, prefix.k), v=jnp.where(beyond, jnp.nan, prefix.v)
    )
    clean = attend([new], prefix, kernel="interpret")
    np.testing.assert_array_equal(attend([new], spoiled, kernel="interpret"), clean)


def test_several_segments_are_joined():
    """EAGLE-3's rows see the newest real rows, the drafted rows and the cache."""
    new, prefix, _ = attention_arrays(SHAPES[0], 0)
    other, *_ = attention_arrays(SHAPES[0], 1)
    one_row = other._replace(q=new.q, mask=jnp.ones((1, 1, 5), bool))
    expected = attend([one_row, new], prefix)
    got = attend([one_row, new], prefix, kernel="interpret")
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("head_dim", [8, 80, 512])
def test_other_head_sizes_are_left_to_plain_jax(head_dim):
    new, prefix, _ = attention_arrays(dataclasses.replace(SHAPES[0], head_dim=head_dim), 0)
    got = attend([new], prefix, kernel="interpret")
    np.testing.assert_array_equal(got, attend([new], prefix))


def test_a_prefix_is_a_masked_segment():
    new, prefix, _ = attention_arrays(SHAPES[1], 0)
    at = np.arange(1300)
    assert prefix.first is not None
    seen = (at < prefix.length[0]) & (at >= np.asarray(prefix.first)[0, 0])
    segment = Segment(new.q, prefix.k, prefix.v, jnp.asarray(seen[None, None]))
    np.testing.assert_array_equal(attend([new], prefix), attend_dense([segment, new]))


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(
    ("layers", "rows", "kept", "dtype"), [(3, 12, 9, "float32"), (33, 1, 1, "bfloat16")]
)
def test_accepted_rows_are_kept(layers, rows, kept, dtype):
    """The kernel writes what plain JAX does, to the caches' last rows too."""
    rng = np.random.default_rng(0)

    def normal(count):
        return tuple(
            tuple(jnp.asarray(rng.standard_normal((2, 2, count, 16)), dtype) for _ in range(2))
            for _ in range(layers)
        )

    cache, new = normal(20), normal(rows)
    index = jnp.asarray(rng.integers(0, rows, (2, kept)), jnp.int32)
    length = jnp.asarray([3, 20 - kept], jnp.int32)
    expected = append(cache, new, index, length)
    got = append_by(cache, new, index, length, "interpret")
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    other = append_by(cache, new, index, length, "dense")
    jax.tree.map(np.testing.assert_array_equal, other, expected)


@pytest.mark.long(ci=1)
@pytest.mark.parametrize("method", ["plain", "dart", "eagle3"])
@pytest.mark.parametrize(
    ("sampling", "generate"),
    [(Sampling(), generate_stepwise), (Sampling(0.8, top_p=0.9), generate)],
    ids=["T0", "T0.8, fused"],
)
def test_a_gpus_way_emits_the_same_tokens(models, method, sampling, generate):
    """The kernel, joined projections and at least 8 rows, from the prefill to the end."""
    rows = [tokens[:n] for tokens, n in zip(models.of_prompts("prompt"), (8, 1), strict=False)]
    prompts = Prompts.pad(rows, 12, MAX_LENGTH)
    params = models.eagle_params if method == "eagle3" else models.params
    drafter = {"dart": models.drafter, "plain": None, "eagle3": models.eagle}[method]
    config = DecodeConfig(
        models.target, drafter, 0 if drafter is None else 8, execution=Execution()
    )
    pruner = HostSearch(config.host_buffer, 8, ngram=models.ngram) if config.searches else None
    options = Options(sampling, seed=SEED)
    expected = generate_stepwise(config, params, pruner, prompts, options)
    fused = {
        name: fuse(copied(value)) if isinstance(value, dict) else value
        for name, value in params.items()
    }
    on_gpu = dataclasses.replace(config, execution=GPU)
    got = generate(on_gpu, fused, pruner, prompts, options)
    for ours, theirs in zip(got.tokens, expected.tokens, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(got.steps, expected.steps)
