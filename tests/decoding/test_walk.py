"""Candidates of block drafters with pair scores: the walk's, the sums behind them, and
the confidence in them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.decoding.drafting.base import DraftInput
from dart_jax.decoding.drafting.block import Block
from dart_jax.decoding.sampling import Sampling, noise_at, row_keys
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.pure import bind

ROWS, K = 3, 6


def draft_input(target, config, params, last, sampling, noise):
    """Rows of random features and tokens, as many sequences as `last` has."""
    rng, batch = np.random.default_rng(3), len(last)
    features = rng.normal(size=(batch, ROWS, config.features_width)).astype(np.float32)
    tokens = jnp.asarray(rng.integers(0, target.vocab_size, (batch, ROWS)), jnp.int32)
    return DraftInput(
        bind(target, params["target"]),
        params,
        tokens,
        tokens,
        jnp.asarray(features),
        jnp.broadcast_to(jnp.arange(ROWS, dtype=jnp.int32), (batch, ROWS)),
        last,
        jnp.zeros(batch, jnp.int32),
        sampling,
        None,
        noise,
    )


@pytest.mark.parametrize("name", ["dspark", "dflash2"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_sums_along_the_walk(models, blocks, name, temperature):
    """Of each position's candidates, logit and score of the pair with the walk's token make the
    sum by which they were chosen; at a temperature it is divided, and has the draw's noise."""
    config, params = blocks(name)
    target = models.target
    method = Block(config, 60, K)
    last = jnp.array([ROWS - 1, 1], jnp.int32)
    sampling = Sampling(temperature).values()

    @jax.jit
    def run(params):
        depth, vocab = method.depth + 1, target.vocab_size
        keys = row_keys(jnp.uint32(5), jnp.arange(2, dtype=jnp.int32))
        noise = noise_at(sampling, keys, last + 2, depth, vocab, core=False)
        inputs = draft_input(target, config, params, last, sampling, noise)
        cache = method.empty(2, 32, jnp.float32, LayerOptions())
        cache, proposal = method(cache, inputs)
        drafter = bind(config, params["drafter"])
        root = jnp.take_along_axis(inputs.next_tokens, last[:, None], axis=1)
        normed = method.run(drafter, inputs, root, cache, last + 1)
        logits = drafter.logits(normed, inputs.target.logits)
        chain = jnp.concatenate([root, proposal.candidates.ids[:, :-1, 0]], axis=1)
        scores = drafter.pairs.all_next(drafter.pairs.factors(normed, chain))
        if config.selector_top_k is not None:
            least = jax.lax.top_k(logits, config.selector_top_k)[0][..., -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        sums = logits + scores
        if noise is not None:
            sums = (sums - sums.max(-1, keepdims=True)) / temperature
            sums += jnp.take(noise.table[:, : method.depth], params["draft_ids"], axis=-1)
        return proposal.candidates, sums

    candidates, sums = run(params)
    draft_ids = np.asarray(params["draft_ids"])
    best = np.argsort(-np.asarray(sums), axis=-1)[..., :K]
    np.testing.assert_array_equal(candidates.ids, draft_ids[best])
    found = np.asarray(candidates.logits).copy()
    found[:, 1:] += np.asarray(candidates.pairs)[:, :, 0]
    np.testing.assert_allclose(found, np.take_along_axis(np.asarray(sums), best, -1), atol=1e-4)
    assert np.abs(candidates.pairs).max() > 0.1


@pytest.mark.parametrize("ranked", [True, False], ids=["pairs", "hidden"])
def test_a_head_tells_its_confidence(models, blocks, ranked):
    """Of every position."""
    config, params = blocks("dspark")
    drafter = {**params["drafter"]}
    if not ranked:
        config = dataclasses.replace(config, pair_rank=0, confidence="hidden")
        drafter.pop("pairs")
        head = drafter["confidence"]["weight"][:, : config.hidden_size]
        drafter["confidence"] = {**drafter["confidence"], "weight": head}

    def propose(bias, last):
        method = Block(config, 60, K)
        cache = method.empty(len(last), 32, jnp.float32, LayerOptions())
        confidence = {**drafter["confidence"], "bias": jnp.full((1,), bias)}
        parts = {**params, "drafter": {**drafter, "confidence": confidence}}

        @jax.jit
        def run(params):
            sampling = Sampling(0.0).values()
            return method(cache, draft_input(models.target, config, params, last, sampling, None))

        return run(parts)[1]

    for last in ([ROWS - 1], [2, 1]):
        sure, doubtful = (
            propose(bias, jnp.array(last, jnp.int32)).confidence for bias in (50, -50)
        )
        np.testing.assert_allclose(sure, np.ones((len(last), config.num_positions)), atol=1e-6)
        np.testing.assert_allclose(doubtful, np.zeros((len(last), config.num_positions)), atol=1e-6)
