"""Drafting with the noise of the target's draws: more is accepted, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import decode
from needs import native

from dart_jax.decoding.drafting import NgramConfig
from dart_jax.decoding.drafting.base import DraftInput, coupled, most_coupled
from dart_jax.decoding.logits import mark_seen, penalize_repetition
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.sampling import (
    Noise,
    _gumbel_noise,
    gumbel_noise,
    scale_and_filter,
)
from eval.benchmarks.prompts import demo_prompts
from tests.support.draws import keys_of, noise_of

POSITIONS = jnp.asarray([[0, 1, 5], [7, 100_000, 3]], jnp.int32)


@native
@pytest.mark.parametrize(("seed", "vocab"), [(0, 1), (1, 16), (2**32 - 1, 4097)])
def test_the_cores_noise_is_jaxs(seed, vocab):
    keys = keys_of(seed, 2)
    got = jax.jit(gumbel_noise, static_argnums=2)(keys, POSITIONS, vocab)
    expected = _gumbel_noise(keys, POSITIONS, vocab)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)
    alone = gumbel_noise(keys[:1], POSITIONS[:1, 1:2], vocab)
    np.testing.assert_array_equal(alone[0, 0], got[0, 1])


def inputs_with(sampling, seen, noise):
    """Only what coupling looks at."""
    fields: dict = dict.fromkeys(DraftInput._fields)
    return DraftInput(**fields | {"sampling": sampling, "seen": seen, "noise": noise})


@pytest.mark.parametrize(
    ("columns", "penalty", "options"),
    [(1, 1, {}), (3, 1, {"top_k": 4}), (1, 1.7, {"top_p": 0.6}), (3, 1.7, {"min_p": 0.2})],
)
def test_a_draft_of_the_targets_own_logits_is_its_draw(columns, penalty, options):
    """With every filter, with a draft vocabulary, at one level or at several."""
    vocab, ids = 30, jnp.asarray([3, 29, 8, 0, 17, 11, 25, 6, 14, 2], jnp.int32)
    rng = np.random.default_rng(1)
    sampling = Sampling(0.8, repetition_penalty=penalty, **options).values()
    seen = mark_seen(jnp.zeros((2, vocab), bool), jnp.asarray([[3, 8], [25, 0]], jnp.int32))
    logits = jnp.asarray(3 * rng.normal(size=(2, 3, 10)), jnp.float32)
    # To all others the target gives no chance.
    full = jnp.full((2, 3, vocab), -jnp.inf).at[:, :, ids].set(logits)
    noise = noise_of(2, POSITIONS[:, :columns], vocab)
    inputs = inputs_with(sampling, seen, noise)
    drafted = ids[jnp.argmax(jax.jit(coupled)(inputs, logits, ids, noise), axis=-1)]
    if penalty != 1:
        full = penalize_repetition(jnp.float32(penalty), full, seen[:, None])
    tokens = jnp.argmax(jax.jit(scale_and_filter)(sampling, full) + noise, axis=-1)
    np.testing.assert_array_equal(drafted, tokens)


@native
@pytest.mark.parametrize("temperature", [1e-38, 0.3, 5.0])
@pytest.mark.parametrize("options", [{}, {"top_k": 9}, {"top_p": 0.8, "min_p": 0.02}])
def test_the_core_couples_as_jax_does(temperature, options):
    """Without filters, and with ones that leave fewer tokens than there are candidates."""
    rng = np.random.default_rng(0)
    vocab, size = 700, 300
    ids = jnp.asarray(rng.permutation(vocab)[:size], jnp.int32)
    logits = jnp.asarray(3 * rng.normal(size=(2, 3, size)), jnp.float32)
    logits = logits.at[0, 1, 3].set(-jnp.inf).at[1, 2, 5].set(jnp.nan)
    sampling = Sampling(temperature, repetition_penalty=1.2, **options).values()
    seen = jnp.asarray(rng.random((2, vocab)) < 0.5)
    noise = Noise(keys_of(5, 2), jnp.asarray([9, 100_000], jnp.int32))

    @jax.jit
    def most(noise):
        return most_coupled(inputs_with(sampling, seen, noise), logits, ids, 25)

    (core, at), (jaxs, places) = most(noise), most(noise.made(4, vocab))
    np.testing.assert_allclose(core, jaxs, rtol=1e-6, atol=1e-5)
    numbers = ~np.isnan(jaxs)
    np.testing.assert_array_equal(at[numbers], places[numbers])
    assert np.isnan(core[1, 2]).all()


GAINS = {"dart": 1.2, "eagle3": 1.3, "ngram": 1.02}


@pytest.mark.long
@pytest.mark.parametrize("name", GAINS)
def test_more_is_accepted(demo, demo_drafters, name):
    drafters = {"dart": demo.drafter, "eagle3": demo_drafters["eagle3"], "ngram": NgramConfig()}
    model = demo.with_drafter(drafters[name], text_drafts=False)
    prompts = [prompt.tokens for prompt in demo_prompts(demo.tokenizer, 2, 64)]
    sampling = Sampling(1.0)

    def tau(generation):
        return (sum(map(len, generation.tokens)) - len(prompts)) / generation.steps.sum()

    expected = decode(demo, prompts, 48, sampling=sampling)

    def drafted(bursts, with_noise):
        options = {"sampling": sampling, "coupled": with_noise}
        generation = decode(model, prompts, 48, nodes=8, burst=bursts, **options)
        for ours, theirs in zip(generation.tokens, expected.tokens, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        return generation

    coupled, apart = drafted(64, True), drafted(64, False)
    assert tau(coupled) > GAINS[name] * tau(apart)
    # The same trees, wherever a burst ends.
    np.testing.assert_array_equal(drafted(1, True).steps, coupled.steps)
