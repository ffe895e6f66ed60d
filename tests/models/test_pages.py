"""Caches in one piece and in pages: both hold the same rows."""

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED
from decoding import Options, start, step

from dart_jax import _core
from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.attention.compaction import append
from dart_jax.models.cache import (
    PagedCache,
    capacity_of,
    first_rows,
    init_cache,
    keep_rows,
)
from dart_jax.models.cpu import available
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.platform.execution import Execution
from dart_jax.models.pure import bind
from tests.support.tiny_configs import TARGET, VOCABULARY, copied, random_params

NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(
        not _core.cpu_ffi_handlers or not available(), reason="built without jaxlib's headers"
    ),
)


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


def random_layers(rng, *shape, layers=2, dtype="float32"):
    return tuple(
        tuple(jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2)) for _ in range(layers)
    )


APPEND = jax.jit(append, static_argnames="kernel")


@pytest.mark.long(keep=5)
@pytest.mark.parametrize("way", ["dense", NATIVE, "interpret"])
@pytest.mark.parametrize(
    ("size", "kept", "layers", "dtype"),
    [
        (None, 9, 3, "float32"),
        (None, 1, 33, "bfloat16"),  # more layers than a kernel has
        (1, 4, 2, "float32"),
        (16, 9, 2, "bfloat16"),
        (64, 7, 2, "float32"),
    ],
)
def test_the_rows_of_a_path_are_kept(way, size, kept, layers, dtype):
    """Rows of missing pages and beyond the table are dropped; nothing else changes."""
    rng, b, new_rows = np.random.default_rng(0), 3, 9
    capacity = 40 if size is None else -(-40 // size) * size
    old = random_layers(rng, b, 2, capacity, 16, layers=layers, dtype=dtype)
    rows = random_layers(rng, b, 2, new_rows, 16, layers=layers, dtype=dtype)
    index = jnp.asarray(rng.integers(0, new_rows, (b, kept)), jnp.int32)
    length = np.array([0, capacity // 2, capacity - (kept if size is None else kept // 2)])
    paged, missing = old, np.zeros((b, 1), bool)
    if size is not None:
        paged = in_pages(old, size, 0)
        missing = rng.random(paged.pages.shape) < 0.2
        paged = paged._replace(pages=jnp.where(missing, -1, paged.pages))
    expected = jax.tree.map(np.array, old if size is None else rows_of(paged))
    for before, new in zip(jax.tree.leaves(expected), jax.tree.leaves(rows), strict=True):
        for s, p in np.ndindex(b, kept):
            at = length[s] + p
            if at < capacity and not missing[s, at // (size or capacity)]:
                before[s, :, at] = new[s, :, index[s, p]]
    got = APPEND(paged, rows, index, jnp.asarray(length, jnp.int32), kernel=way)
    if size is None:
        jax.tree.map(np.testing.assert_array_equal, got, expected)
        return
    jax.tree.map(np.testing.assert_array_equal, rows_of(got), expected)
    named = np.setdiff1d(np.asarray(paged.pages), [-1])
    others = np.setdiff1d(np.arange(paged.layers[0][0].shape[0]), named)
    for new, before in zip(*map(jax.tree.leaves, (got.layers, paged.layers)), strict=True):
        np.testing.assert_array_equal(new[others], before[others])


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
