"""The DART drafter when decoding: with and without a cache, in JAX and in the C++ core."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native_pages import grouped
from needs import native
from tiny_configs import DART, TARGET, random_params

from dart_jax.models.attention.compaction import extend
from dart_jax.models.cache import PagedCache, init_cache
from dart_jax.models.cpu import only_rows
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.draft_layer import take_rows
from dart_jax.models.networks.pure import bind
from dart_jax.models.platform.weights import WeightsForm

KINDS = {
    "dart": DART,
    "unshifted": dataclasses.replace(DART, shifted=False, draft_length=3),
    "one position": dataclasses.replace(DART, draft_length=0),
    "window": DART.with_window(4),  # shorter than the text, and than a block
    "narrow window": DART.with_window(2),
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


LAST = jnp.array([8, 6], jnp.int32)  # the anchors among nine rows


def drafting(config, params, options=LayerOptions()):
    """The logits after real rows, and these rows' keys and values."""

    @jax.jit
    def draft(*inputs):
        drafter = bind(config, params, options)
        normed, rows = drafter(*inputs)
        return drafter.head(normed), rows

    return draft


def in_two_calls(draft, config, dtype=jnp.float32):
    """Drafts after nine rows given in two calls, which are padded differently."""
    inputs, early = real_rows(9), np.array([4, 2])  # rows of each sequence that come first
    _, first = draft(*(x[:, :5] for x in inputs), jnp.asarray(early - 1, jnp.int32))
    cache = init_cache(1, 2, 2, 12, config.head_dim, dtype)
    cache = extend(cache, first, jnp.zeros(2, jnp.int32))
    late = jnp.asarray(np.minimum(early[:, None] + np.arange(6), 8), jnp.int32)
    rest, length = [take_rows(x, late) for x in inputs[:2]], jnp.asarray(early, jnp.int32)
    return draft(*rest, late, LAST - length, cache, length)[0]


def near(ours, theirs, tolerance=1e-5):
    assert ours.dtype == theirs.dtype
    ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_cache_changes_nothing(config):
    draft = drafting(config, random_params(config, 1))
    whole, _ = draft(*real_rows(9), LAST)
    assert whole.shape == (2, config.num_positions, config.draft_vocab_size)
    near(in_two_calls(draft, config), whole)
    # Each position predicts something different.
    assert len(np.unique(np.asarray(whole[0]), axis=0)) == config.num_positions


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_the_first_positions_need_none_of_the_later_ones(config):
    params = random_params(config, 1)
    whole, rows = drafting(config, params)(*real_rows(9), LAST)
    for positions in {1, max(1, config.num_positions - 1)}:
        logits, same = drafting(config.shortened(positions), params)(*real_rows(9), LAST)
        assert logits.shape[1] == positions
        near(logits, whole[:, :positions])
        jax.tree.map(near, same, rows)


NATIVE = {
    name: dataclasses.replace(KINDS[name], head_dim=16)
    for name in ("dart", "unshifted", "one position", "window")
}
NATIVE["longer window"] = NATIVE["dart"].with_window(7)


def in_core(config, kv="auto"):
    """`drafting` by the C++ core."""
    tiles = WeightsForm(fused=True, tiles=True).prepare(random_params(config, 1))
    return drafting(config, tiles, LayerOptions(attention="native", fused=True, kv=kv))


@native
@pytest.mark.parametrize("kv", ["auto", "bfloat16"])
@pytest.mark.parametrize("config", NATIVE.values(), ids=NATIVE)
def test_the_core_computes_the_layer_by_one_call(config, kv):
    """As JAX does; and bits do not depend on what is cached, nor on the rows after the anchor."""
    draft, inputs = in_core(config, kv), real_rows(9)
    calls = str(draft.trace(*inputs, LAST).jaxpr)
    assert "dart_draft_layer" in calls
    assert "dart_attention" not in calls
    whole, rows = draft(*inputs, LAST)
    plain = drafting(config, random_params(config, 1), LayerOptions(kv=kv))(*inputs, LAST)
    jax.tree.map(partial(near, tolerance=1e-5 if kv == "auto" else 2e-2), (whole, rows), plain)
    np.testing.assert_array_equal(in_two_calls(draft, config, rows[0][0].dtype), whole)
    alone, _ = draft(*(x[:1] for x in inputs), LAST[:1])
    np.testing.assert_array_equal(alone, whole[:1])

    def of_six(used):
        with only_rows(used):
            return draft.__wrapped__(*(x[:1] for x in inputs), LAST[:1])[1]

    for ours, theirs in zip(
        jax.tree.leaves(jax.jit(of_six)(6)), jax.tree.leaves(rows), strict=True
    ):
        np.testing.assert_array_equal(ours[:, :, :6], theirs[:1, :, :6])


@native
@pytest.mark.parametrize("window", [None, 20])
def test_bits_do_not_depend_on_pages(window):
    """Nor on where the window begins in them: 35 rows in pages of 16, in one piece and without a
    cache."""
    config, inputs = NATIVE["dart"].with_window(window), real_rows(40)
    draft = in_core(config)
    whole, [rows] = draft(*inputs, jnp.array([38, 38], jnp.int32))
    filled = [np.pad(x, ((0, 0), (0, 0), (0, 8), (0, 0))) for x in rows]
    pools = [x.reshape(2, 2, 3, 16, 16).swapaxes(1, 2).reshape(6, 2, 16, 16) for x in filled]
    order = np.array([[4, 1, 3], [0, 5, 2]], np.int32)
    shuffled = [pool[np.argsort(order.ravel())] for pool in pools]
    pages = jax.tree.map(jnp.asarray, PagedCache(grouped([shuffled]), order))
    piece = (tuple(map(jnp.asarray, filled)),)
    new = *(x[:, 35:] for x in inputs), jnp.array([3, 3], jnp.int32)
    for cache in (piece, pages):
        logits, _ = draft(*new, cache, jnp.array([35, 35], jnp.int32))
        np.testing.assert_array_equal(logits, whole)
