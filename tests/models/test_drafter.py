"""The DART drafter when decoding: with and without a cache, with one layer and several."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_configs import DART, TARGET, random_params

from dart_jax.models.cache import append, init_cache
from dart_jax.models.draft_layer import take_rows
from dart_jax.models.pure import abstract_params, bind

KINDS = {
    "dart": DART,
    "three layers": dataclasses.replace(DART, num_hidden_layers=3, draft_length=2),
    "unshifted": dataclasses.replace(DART, shifted=False, draft_length=3),
    "one position": dataclasses.replace(DART, draft_length=0),
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
