"""Caches in one piece and in pages: both hold the same rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_inputs import in_pages
from native_pages import as_rows, grouped
from needs import NATIVE, native

from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.attention.compaction import append
from dart_jax.models.attention.segments import Prefix
from dart_jax.models.cache import capacity_of, first_rows
from dart_jax.models.cpu import only_rows


def test_capacity_has_room_for_a_path_after_the_last_token(models):
    plain = DecodeConfig(models.target)
    dart = DecodeConfig(models.target, models.drafter, nodes=60)
    assert [plain.capacity(n) for n in (1, 63, 64)] == [64, 64, 128]
    assert [dart.capacity(n) for n in (1, 55, 56)] == [64, 64, 128]


def rows_of(paged):
    """A cache's rows in one piece; those of missing pages are 0."""
    full = jnp.full(len(paged.pages), capacity_of(paged), jnp.int32)
    prefixes = (Prefix(*layer, full, pages=paged.pages) for layer in paged.layers)
    return tuple(prefix.in_one_piece()[:2] for prefix in prefixes)


def random_layers(rng, *shape, layers=2, dtype="float32"):
    return tuple(
        tuple(jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2)) for _ in range(layers)
    )


APPEND = jax.jit(append, static_argnames="kernel")


@pytest.mark.long(keep=3)
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
    in_groups = size is not None and way == "native"
    if in_groups:
        paged = paged._replace(layers=jax.tree.map(jnp.asarray, grouped(paged.layers)))
    for before, new in zip(jax.tree.leaves(expected), jax.tree.leaves(rows), strict=True):
        for s, p in np.ndindex(b, kept):
            at = length[s] + p
            if at < capacity and not missing[s, at // (size or capacity)]:
                before[s, :, at] = new[s, :, index[s, p]]
    before_it = jax.tree.map(np.array, paged)  # APPEND may reuse its memory
    got = APPEND(paged, rows, index, jnp.asarray(length, jnp.int32), kernel=way)
    if in_groups:
        got, before_it = (x._replace(layers=as_rows(x.layers)) for x in (got, before_it))
    if size is None:
        jax.tree.map(np.testing.assert_array_equal, got, expected)
        return
    jax.tree.map(np.testing.assert_array_equal, rows_of(got), expected)
    named = np.setdiff1d(np.asarray(paged.pages), [-1])
    others = np.setdiff1d(np.arange(paged.layers[0][0].shape[0]), named)
    for new, before in zip(*map(jax.tree.leaves, (got.layers, before_it.layers)), strict=True):
        np.testing.assert_array_equal(*(np.asarray(x[others], np.float32) for x in (new, before)))


def test_first_rows_are_those_of_the_first_pages():
    paged = in_pages(random_layers(np.random.default_rng(0), 2, 1, 48, 16), 16, 0)
    assert first_rows(paged, 0) is None
    for count, capacity in [(1, 16), (16, 16), (17, 32), (48, 48), (99, 48)]:
        first = first_rows(paged, count)
        assert capacity_of(first) == capacity
        whole = jax.tree.map(lambda rows, size=capacity: rows[:, :, :size], rows_of(paged))
        jax.tree.map(np.testing.assert_array_equal, rows_of(first), whole)


@native
def test_the_core_keeps_rows_in_place():
    old, new = ((((jnp.zeros((2, 3, rows, 8)),) * 2),) * 3 for rows in (20, 9))
    index, length = jnp.zeros((2, 4), jnp.int32), jnp.zeros(2, jnp.int32)
    keep = jax.jit(append, static_argnames="kernel", donate_argnums=0)
    compiled = keep.lower(old, new, index, length, kernel="native").compile().as_text()
    assert "copy(" not in compiled.split("ENTRY")[1]


@native
@pytest.mark.parametrize("used", [0, 3, 9])
def test_of_rows_that_are_not_computed_none_is_kept(used):
    """What is there stays: it may be another text's."""
    old, new = (((jnp.full((1, 2, rows, 8), rows, jnp.float32),) * 2,) for rows in (7, 4))
    index = jnp.arange(4, dtype=jnp.int32)[None]
    with only_rows(jnp.int32(used)):
        kept = append(old, new, index, jnp.ones(1, jnp.int32), "native")
    keys, values = jax.tree.map(lambda x: x[0, 0, :, 0].tolist(), kept)[0]
    assert keys == values == [7, *[4] * min(used, 4), *[7] * (6 - min(used, 4))]
