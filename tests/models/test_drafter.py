"""The DART drafter when decoding: with and without a cache, with one layer and several."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native_pages import grouped
from needs import native
from tiny_configs import DART, TARGET, random_params

from dart_jax.models.attention.compaction import append
from dart_jax.models.cache import PagedCache, init_cache
from dart_jax.models.cpu import only_rows
from dart_jax.models.drafters.layer import take_rows
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.platform.weights import WeightsForm
from dart_jax.models.pure import abstract_params, bind

KINDS = {
    "dart": DART,
    "three layers": dataclasses.replace(DART, num_hidden_layers=3, draft_length=2),
    "unshifted": dataclasses.replace(DART, shifted=False, draft_length=3),
    "one position": dataclasses.replace(DART, draft_length=0),
    "window": DART.with_window(4),  # shorter than the text, and than a block
    "three layers, window": dataclasses.replace(
        DART, num_hidden_layers=3, draft_length=2, sliding_window=3
    ),
}


def real_rows(number):
    """Features, embeddings and positions of `number` real rows of two sequences."""
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(2, number, 3 * TARGET.hidden_size)), jnp.float32)
    embeds = jnp.asarray(rng.normal(size=(2, number, TARGET.hidden_size)), jnp.float32)
    return (
        features,
        embeds,
        jnp.broadcast_to(jnp.arange(number, dtype=jnp.int32)[None], (2, number)),
    )


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_cache_changes_nothing(config):
    """Rows given in two calls, padded differently, against all rows at once."""
    params = random_params(config, 1)
    features, embeds, places = real_rows(9)
    early = np.array([4, 2])  # rows of each sequence that come first

    @jax.jit
    def draft(features, embeds, places, last, cache=None, length=None):
        return bind(config, params)(features, embeds, places, last, cache, length)

    whole, rows = draft(features, embeds, places, jnp.array([8, 6], jnp.int32))
    assert len(rows) == config.num_hidden_layers

    _, first = draft(features[:, :5], embeds[:, :5], places[:, :5], jnp.asarray(early - 1))
    cache = init_cache(config.num_hidden_layers, 2, 2, 12, config.head_dim, jnp.float32)
    order = jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32)[None], (2, 5))
    cache = append(cache, first, order, jnp.zeros(2, jnp.int32))
    late = np.minimum(early[:, None] + np.arange(6), 8)
    rest = [take_rows(x, jnp.asarray(late)) for x in (features, embeds)]
    last = jnp.array([8, 6], jnp.int32) - early
    length = jnp.asarray(early, jnp.int32)
    split, _ = draft(*rest, jnp.asarray(late, jnp.int32), last, cache, length)
    assert split.shape == (2, config.num_positions, config.draft_vocab_size)
    np.testing.assert_allclose(split, whole, rtol=0, atol=1e-5 * float(jnp.abs(whole).max()))
    # Each position predicts something different.
    assert len(np.unique(np.asarray(whole[0]), axis=0)) == config.num_positions


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_the_first_positions_need_none_of_the_later_ones(config):
    params = random_params(config, 1)
    inputs = *real_rows(5), jnp.array([4, 2], jnp.int32)
    whole, rows = jax.jit(bind(config, params))(*inputs)
    for positions in {1, max(1, config.num_positions - 1)}:
        logits, same = jax.jit(bind(config.shortened(positions), params))(*inputs)
        assert logits.shape[1] == positions
        np.testing.assert_allclose(logits, whole[:, :positions], rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(jax.tree.leaves(same), jax.tree.leaves(rows), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_layers_after_the_first_are_further_parameters():
    """Further layers change neither the first layer's parameters nor their names."""
    one, three = (abstract_params(KINDS[name]) for name in ("dart", "three layers"))
    assert "layers" not in one
    assert [*three.pop("layers")] == [0, 1]
    assert three == one


NATIVE = {
    name: dataclasses.replace(KINDS[name], head_dim=16)
    for name in ("dart", "unshifted", "one position", "window")
}
NATIVE["longer window"] = NATIVE["dart"].with_window(7)


@native
@pytest.mark.parametrize("kv", ["auto", "bfloat16"])
@pytest.mark.parametrize("config", NATIVE.values(), ids=NATIVE)
def test_the_core_computes_the_layer_by_one_call(config, kv):
    """As JAX does; and bits do not depend on what is cached, nor on the rows after the anchor."""
    params = random_params(config, 1)
    options = LayerOptions(attention="native", fused=True, kv=kv)
    tiles = WeightsForm(fused=True, tiles=True).prepare(jax.tree.map(jnp.copy, params))
    features, embeds, places = real_rows(9)

    @jax.jit
    def draft(features, embeds, places, last, cache=None, length=None):
        return bind(config, tiles, options)(features, embeds, places, last, cache, length)

    calls = str(draft.trace(features, embeds, places, jnp.array([8, 6], jnp.int32)).jaxpr)
    assert "dart_draft_layer" in calls
    assert "dart_attention" not in calls
    whole, rows = draft(features, embeds, places, jnp.array([8, 6], jnp.int32))
    plain, plain_rows = jax.jit(bind(config, params, LayerOptions(kv=kv)))(
        features, embeds, places, jnp.array([8, 6], jnp.int32)
    )
    scale, rounding = float(jnp.abs(plain).max()), 1e-5 if kv == "auto" else 1e-2
    np.testing.assert_allclose(whole, plain, rtol=0, atol=rounding * scale)
    for ours, theirs in zip(jax.tree.leaves(rows), jax.tree.leaves(plain_rows), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(
            ours.astype(jnp.float32), theirs.astype(jnp.float32), rtol=rounding, atol=rounding
        )

    first = features[:, :5], embeds[:, :5], places[:, :5], jnp.array([3, 1], jnp.int32)
    _, read = draft(*first)
    cache = init_cache(1, 2, 2, 12, config.head_dim, rows[0][0].dtype)
    order = jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32)[None], (2, 5))
    cache = append(cache, read, order, jnp.zeros(2, jnp.int32))
    late = jnp.asarray(np.minimum(np.array([[4], [2]]) + np.arange(6), 8), jnp.int32)
    rest = [take_rows(x, late) for x in (features, embeds)]
    split, new = draft(*rest, late, jnp.array([4, 4], jnp.int32), cache, jnp.array([4, 2]))
    np.testing.assert_array_equal(split, whole)
    for ours, theirs in zip(jax.tree.leaves(new), jax.tree.leaves(rows), strict=True):
        np.testing.assert_array_equal(ours[0, :, :5], theirs[0, :, 4:])
        np.testing.assert_array_equal(ours[1, :, :5], theirs[1, :, 2:7])
    alone, _ = draft(*(x[:1] for x in (features, embeds, places)), jnp.array([8], jnp.int32))
    np.testing.assert_array_equal(alone, whole[:1])

    @jax.jit
    def read_prompt(used):
        with only_rows(used):
            return bind(config, tiles, options)(
                features[:1], embeds[:1], places[:1], jnp.array([8], jnp.int32)
            )[1]

    for ours, theirs in zip(
        jax.tree.leaves(read_prompt(jnp.int32(6))), jax.tree.leaves(rows), strict=True
    ):
        np.testing.assert_array_equal(ours[:, :, :6], theirs[:1, :, :6])


@native
@pytest.mark.parametrize("window", [15, 16, 1000])
def test_a_window_as_long_as_the_text_changes_no_bit(window):
    config = NATIVE["dart"]
    params = random_params(config, 1)
    tiles = WeightsForm(fused=True, tiles=True).prepare(jax.tree.map(jnp.copy, params))
    inputs = *real_rows(9), jnp.array([8, 6], jnp.int32)
    core = LayerOptions(attention="native", fused=True)
    for options, weights in ((LayerOptions(), params), (core, tiles)):
        whole, narrow = (
            jax.jit(bind(each, weights, options))(*inputs)[0]
            for each in (config, config.with_window(window))
        )
        same = np.array_equal(narrow, whole)
        assert same == (window >= 16)  # 9 real rows and 7 mask rows


@native
@pytest.mark.parametrize("window", [None, 20])
def test_bits_do_not_depend_on_pages(window):
    """Nor on where the window begins in them: 35 rows in pages of 16, in one piece and without a
    cache."""
    config = NATIVE["dart"].with_window(window)
    params = random_params(config, 1)
    tiles = WeightsForm(fused=True, tiles=True).prepare(jax.tree.map(jnp.copy, params))
    features, embeds, places = real_rows(40)

    @jax.jit
    def draft(features, embeds, places, last, cache=None, length=None):
        drafter = bind(config, tiles, LayerOptions(attention="native", fused=True))
        return drafter(features, embeds, places, last, cache, length)

    whole, [rows] = draft(features, embeds, places, jnp.array([38, 38], jnp.int32))
    filled = [np.pad(x, ((0, 0), (0, 0), (0, 8), (0, 0))) for x in rows]
    pools = [x.reshape(2, 2, 3, 16, 16).swapaxes(1, 2).reshape(6, 2, 16, 16) for x in filled]
    order = np.array([[4, 1, 3], [0, 5, 2]], np.int32)
    shuffled = [np.empty_like(pool) for pool in pools]
    for pool, to in zip(pools, shuffled, strict=True):
        to[order.ravel()] = pool
    pages = jax.tree.map(jnp.asarray, PagedCache(grouped([shuffled]), order))
    piece = (tuple(map(jnp.asarray, filled)),)
    new = *(x[:, 35:] for x in (features, embeds, places)), jnp.array([3, 3], jnp.int32)
    for cache in (piece, pages):
        logits, _ = draft(*new, cache, jnp.array([35, 35], jnp.int32))
        np.testing.assert_array_equal(logits, whole)
