"""Caches in one piece and in pages: both hold the same rows, and attention to them is the same."""

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED
from decoding import Options, start, step
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_jax import _core
from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.compaction import append as append_by
from dart_jax.models.attention.segments import Scoring
from dart_jax.models.cache import (
    PagedCache,
    append,
    capacity_of,
    first_rows,
    init_cache,
    keep_rows,
)
from dart_jax.models.cpu.foreign import available
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.platform.execution import Execution
from dart_jax.models.pure import bind
from tests.support.attention_inputs import AttentionShape, paged_arrays
from tests.support.tiny_configs import TARGET, VOCABULARY, copied, random_params

NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(
        not _core.cpu_ffi_handlers or not available(), reason="built without jaxlib's headers"
    ),
)
KERNELS = pytest.mark.parametrize("kernel", ["dense", NATIVE, "interpret", "interpret-mosaic"])

SHAPES = [
    (AttentionShape(2, 4, 2, 5, 200), 64),
    (AttentionShape(3, 4, 2, 3, 40, 16), 1),
    (AttentionShape(1, 6, 2, 9, 150, cap=20.0), 24),  # blocks of keys in several pages
    (AttentionShape(2, 2, 1, 4, 170, window=50), 16),
    (AttentionShape(1, 2, 1, 128, 96, 16, window=20), 8),  # a prompt's chunk
    (AttentionShape(1, 8, 2, 5, 640), 128),  # several splits
]


def compare(kernel, shape, size, seed):
    new, paged, whole = paged_arrays(shape, size, seed)
    scoring = Scoring(cap=shape.cap)
    expected = attend([new], whole, scoring, "native" if kernel == "native" else "dense")
    got = attend([new], paged, scoring, kernel)
    if kernel in ("dense", "native"):
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


@pytest.mark.long(keep=3)
@KERNELS
@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=str)
def test_attention_to_pages(kernel, shape, size):
    """Neither missing pages nor rows that nobody filled matter, wherever the others are."""
    compare(kernel, shape, size, 0)


@pytest.mark.long(ci=1)
@KERNELS
@settings(max_examples=5, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 90),
    st.sampled_from([1, 2, 16, 24, 64]),
    st.integers(1, 40) | st.none(),
    st.integers(0, 2**32 - 1),
)
def test_attention_to_any_pages(kernel, rows, capacity, size, window, seed):
    head_dim = 64 if kernel == "interpret-mosaic" else 16
    compare(kernel, AttentionShape(2, 2, 1, rows, capacity, head_dim, window), size, seed)


@pytest.mark.parametrize("seed", range(2))
def test_append_writes_the_chosen_rows_after_each_sequence(seed):
    rng = np.random.default_rng(seed)

    def layers(length):
        return tuple(
            tuple(rng.normal(size=(3, 2, length, 4)).astype(np.float32) for _ in range(2))
            for _ in range(2)
        )

    cache, rows = layers(10), layers(5)
    index = rng.integers(0, 5, (3, 4)).astype(np.int32)
    length = rng.integers(0, 7, 3).astype(np.int32)  # 6 + 4 rows fill it
    written = jax.jit(append)(cache, rows, index, length)
    for b in range(3):
        for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(rows), strict=True):
            old[b, :, length[b] : length[b] + 4] = new[b][:, index[b]]
    jax.tree.map(np.testing.assert_array_equal, written, cache)


def test_capacity_has_room_for_a_path_after_the_last_token(models):
    plain = DecodeConfig(models.target)
    dart = DecodeConfig(models.target, models.drafter, nodes=60)
    assert [plain.capacity(n) for n in (1, 63, 64)] == [64, 64, 128]
    assert [dart.capacity(n) for n in (1, 55, 56)] == [64, 64, 128]


def in_pages(cache, size, seed, spare=2):
    """The same cache in pages that are anywhere in pools."""
    rng = np.random.default_rng(seed)
    b, _, rows, _ = cache[0][0].shape
    each = -(-rows // size)
    pages = rng.permutation(b * each + spare)[: b * each].reshape(b, each)

    def pool(x):
        x = np.pad(x, ((0, 0), (0, 0), (0, each * size - rows), (0, 0)))
        x = x.reshape(b, x.shape[1], each, size, x.shape[3]).swapaxes(1, 2)
        out = np.zeros((b * each + spare, *x.shape[2:]), x.dtype)
        out[pages] = x
        return jnp.asarray(out)

    return PagedCache(jax.tree.map(pool, cache), jnp.asarray(pages, jnp.int32))


def rows_of(paged):
    """A cache's rows in one piece; those of missing pages are 0."""
    pages = np.asarray(paged.pages)

    def whole(pool):
        taken = np.where(pages[..., None, None, None] < 0, 0, np.asarray(pool)[pages])
        b, n, kv_heads, size, h = taken.shape
        return taken.swapaxes(1, 2).reshape(b, kv_heads, n * size, h)

    return jax.tree.map(whole, paged.layers)


def random_layers(rng, *shape):
    return tuple(
        tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(2)) for _ in range(2)
    )


APPEND = jax.jit(append_by, static_argnames="kernel")
WAYS = pytest.mark.parametrize("way", ["dense", NATIVE, "interpret"])


@pytest.mark.long(keep=1)
@WAYS
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 9), st.sampled_from([1, 2, 16, 64]), st.integers(0, 2**32 - 1))
def test_rows_are_kept_in_pages(way, kept, size, seed):
    """Those of missing pages and beyond the table are dropped; nothing else changes."""
    rng = np.random.default_rng(seed)
    b, each, new_rows = 3, -(-40 // size), 9
    cache, rows = random_layers(rng, b, 2, each * size, 16), random_layers(rng, b, 2, new_rows, 16)
    paged = in_pages(cache, size, seed)
    missing = rng.random(paged.pages.shape) < 0.2
    paged = paged._replace(pages=jnp.where(missing, -1, paged.pages))
    index = jnp.asarray(rng.integers(0, new_rows, (b, kept)), jnp.int32)
    length = jnp.asarray(rng.integers(0, each * size + 1, b), jnp.int32)
    expected = jax.tree.map(np.array, rows_of(paged))
    for old, new in zip(jax.tree.leaves(expected), jax.tree.leaves(rows), strict=True):
        for s in range(b):
            for p in range(kept):
                at = int(length[s]) + p
                if at < each * size and not missing[s, at // size]:
                    old[s, :, at] = new[s, :, index[s, p]]
    got = APPEND(paged, rows, index, length, kernel=way)
    assert isinstance(got, PagedCache)
    jax.tree.map(np.testing.assert_array_equal, rows_of(got), expected)
    named = np.setdiff1d(np.asarray(paged.pages), [-1])
    others = np.setdiff1d(np.arange(paged.layers[0][0].shape[0]), named)
    jax.tree.map(
        lambda new, old: np.testing.assert_array_equal(new[others], old[others]),
        got.layers,
        paged.layers,
    )


def test_first_rows_are_those_of_the_first_pages():
    paged = in_pages(random_layers(np.random.default_rng(0), 2, 1, 48, 16), 16, 0)
    assert capacity_of(paged) == 48
    assert first_rows(paged, 0) is None
    for count, capacity in [(1, 16), (16, 16), (17, 32), (48, 48), (99, 48)]:
        first = first_rows(paged, count)
        assert capacity_of(first) == capacity
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_array_equal(ours, theirs[:, :, : ours.shape[2]]),
            rows_of(first),
            rows_of(paged),
        )


def copies_no_pool(compiled, *caches):
    text = compiled.as_text()
    for leaf in jax.tree.leaves([cache.layers for cache in caches]):
        shape = re.escape(f"f32[{','.join(map(str, leaf.shape))}]")
        assert re.search(shape, text)
        assert not re.findall(rf"= {shape}\S* copy\(.*", text)


@pytest.mark.long
@pytest.mark.parametrize("kernel", [NATIVE, "dense"])
def test_a_chunk_of_a_prompt_in_pages(kernel):
    """Has the same bits as in one piece, whichever pages come first; no pool is copied."""
    target = bind(TARGET, random_params(TARGET, 0), LayerOptions(kernel))
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, VOCABULARY, (1, 64)), jnp.int32)

    @partial(jax.jit, donate_argnums=0, static_argnums=2)
    def read(cache, start, filled):
        own = jax.lax.dynamic_slice_in_dim(tokens, start[0], 32, axis=1)
        at = start[:, None] + jnp.arange(32, dtype=jnp.int32)[None]
        causal = jnp.tril(jnp.ones((1, 32, 32), bool))
        out = target(own, at, causal, first_rows(cache, filled), start)
        features = out.features[:, -1]  # of earlier layers, as in a prefill
        return keep_rows(cache, out.rows, start, 64), features

    whole = init_cache(TARGET.num_hidden_layers, 1, 1, 64, TARGET.head_dim, jnp.float32)
    paged = in_pages(whole, 16, 0)
    for begin in (0, 32):
        start = jnp.full(1, begin, jnp.int32)
        compiled = read.lower(paged, start, begin).compile()
        copies_no_pool(compiled, paged)
        (whole, expected), (paged, got) = read(whole, start, begin), compiled(paged, start)
        np.testing.assert_array_equal(got, expected)
        jax.tree.map(np.testing.assert_array_equal, rows_of(paged), whole)


@pytest.mark.long
@pytest.mark.parametrize("method", ["dart", "plain", "eagle3", "sps"])
@pytest.mark.parametrize("kernel", [NATIVE, "dense"])
def test_a_step_with_pages(models, prompts, method, kernel):
    """The same bits as in one piece, for every cache; no pool is copied."""
    params, drafter = models.params, {"dart": models.drafter, "plain": None}.get(method)
    if method == "eagle3":
        params, drafter = models.eagle_params, models.eagle
    elif method == "sps":
        params, drafter = {**params, "drafter": params["target"]}, models.target
    execution = Execution() if kernel == "dense" else Execution.of_cpu()
    params = {
        name: execution.weights.prepare(copied(value)) if isinstance(value, dict) else value
        for name, value in params.items()
    }
    nodes = 0 if method == "plain" else 4
    config = DecodeConfig(models.target, drafter, nodes=nodes, execution=execution)
    state, _ = start(config, params, prompts, Options(seed=SEED))
    trees = jnp.zeros((len(prompts.tokens), 3, 5), jnp.int32) if config.searches else None
    paged = dataclasses.replace(
        jax.tree.map(jnp.copy, state),  # the step consumes it
        target_cache=in_pages(state.target_cache, 16, 0),
        draft_state=None if state.draft_state is None else in_pages(state.draft_state, 16, 1),
    )
    compiled = step.lower(config, params, paged, trees).compile()
    copies_no_pool(compiled, *filter(None, (paged.target_cache, paged.draft_state)))
    paged, packed = compiled(params, paged, trees)
    state, expected = step(config, params, state, trees)
    np.testing.assert_array_equal(packed, expected)
    for ours, theirs in (
        (paged.target_cache, state.target_cache),
        (paged.draft_state, state.draft_state),
    ):
        if ours is not None:
            jax.tree.map(np.testing.assert_array_equal, rows_of(ours), theirs)
