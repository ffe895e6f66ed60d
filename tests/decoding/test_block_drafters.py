"""Block drafters draft what their authors' modules do, with a cache, and so by the C++ core."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native
from safetensors.numpy import load_file
from tiny_configs import AUTHORS, copied

from dart_jax.decoding.drafting.base import DraftInput, PromptRows
from dart_jax.decoding.drafting.block import Block
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.sampling import SamplingValues, noise_at
from dart_jax.models.networks.pure import bind, init_params
from dart_jax.models.platform.execution import Execution
from dart_jax.weights.checkpoint import load_drafter
from tests.support.draws import keys_of

GOLDENS = Path(__file__).parents[1] / "weights/block_drafters"
GREEDY = SamplingValues()
ROWS = 6  # new rows before a draft, padding included


class Texts:
    """Texts with their features, whose rows are read and drafted after."""

    def __init__(self, target, config, params, tokens, features, k, execution=Execution()):
        self.method = Block(config, config.num_positions, max_candidates=k)
        self.params, self.options = params, execution.drafter
        self.target = bind(target, params["target"], execution.target)
        self.tokens, self.features = jnp.asarray(tokens, jnp.int32), jnp.asarray(features)

    @classmethod
    def random(cls, target, config, params, k, length=32, **options):
        rng = np.random.default_rng(3)
        tokens = rng.integers(0, 200, (3, length))
        features = rng.normal(size=(3, length, config.features_width)).astype(np.float32)
        return cls(target, config, params, tokens, features, k, **options)

    def rows(self, start, count):
        """Arguments for rows of all texts."""
        batch, at = len(self.tokens), start + jnp.arange(count, dtype=jnp.int32)

        def part(x, first):
            return jax.lax.dynamic_slice_in_dim(x, first, count, axis=1)

        return {
            "target": self.target,
            "params": self.params,
            "tokens": part(self.tokens, start),
            "next_tokens": part(self.tokens, start + 1),
            "features": part(self.features, start),
            "positions": jnp.broadcast_to(at, (batch, count)),
            "start": jnp.broadcast_to(jnp.int32(start), (batch,)),
            "options": self.options,
        }

    def empty(self):
        dtype = self.options.cache_dtype(jnp.float32)
        return self.method.empty(len(self.tokens), 64, dtype, self.options)

    def read(self, cache, start, count, filled):
        return self.method.read(cache, PromptRows(**self.rows(start, count), filled=filled))

    def draft(self, cache, start, last, sampling=GREEDY, noise=None):
        """After new rows, of which the last ones are padding: the cache, the proposal, what the
        head has read, and its logits."""
        last = jnp.broadcast_to(last, (len(self.tokens),))
        options = {"last": last, "sampling": sampling, "seen": None, "noise": noise}
        inputs = DraftInput(**self.rows(start, ROWS), **options)
        cache, proposal = self.method(cache, inputs)
        drafter = self.drafter()
        root = jnp.take_along_axis(inputs.next_tokens, last[:, None], axis=1)
        normed = self.method.run(drafter, inputs, root, cache, inputs.start + last + 1)
        return cache, proposal, root, normed, drafter.logits(normed, inputs.target.logits)

    def drafter(self):
        return bind(self.method.config, self.params["drafter"], self.options)


@functools.cache
def authors_target():
    """Random parameters of a target, of which only embedding and head matter."""
    return init_params(AUTHORS, 0)


@pytest.mark.long(keep=3)
@pytest.mark.parametrize("name", sorted(path.name for path in GOLDENS.iterdir() if path.is_dir()))
def test_logits_and_chains_are_the_authors(name):
    outputs = load_file(GOLDENS / name / "outputs.safetensors")
    embed = jnp.asarray(outputs["embed"])
    config, drafter, ids = load_drafter(GOLDENS / name, embedding=embed)
    target = {"embed_tokens": embed, "lm_head": {"kernel": outputs["head"].T}}
    target = {**authors_target(), **target}
    params = {"target": target, "drafter": drafter, "draft_ids": jnp.asarray(ids)}
    # Rows of padding follow those of the context, so that all steps are one program.
    index = np.minimum(np.arange(len(outputs["tokens"]) + ROWS), 19)
    whole = (outputs[name][index][None] for name in ("tokens", "features"))
    texts = Texts(AUTHORS, config, params, *whole, k=1)
    draft, cache, chains = jax.jit(texts.draft), texts.empty(), set()
    for step in range(5):
        theirs = {name: outputs.get(f"{name}_{step}") for name in ("logits", "hidden", "chain")}
        start, rows = outputs[f"start_{step}"], outputs[f"rows_{step}"]
        if start == 0:  # the prompt is read without drafting, and its last row once more
            cache = jax.jit(texts.read, static_argnums=(2, 3))(cache, start, int(rows), 0)
            start, rows = rows - 1, np.int32(1)
        cache, proposal, _, hidden, logits = draft(cache, start, rows - 1)
        np.testing.assert_allclose(hidden[0], theirs["hidden"], atol=1e-4)
        np.testing.assert_allclose(logits[0], theirs["logits"], atol=1e-4)
        np.testing.assert_array_equal(proposal.candidates.ids[0, :, 0], theirs["chain"])
        confidence = outputs.get(f"confidence_{step}")
        assert (proposal.confidence is None) == (confidence is None)
        if confidence is not None:
            ours = jax.scipy.special.logit(proposal.confidence[0])
            np.testing.assert_allclose(ours, confidence, atol=1e-3)
        chains.add(tuple(theirs["chain"]))
    assert len(chains) > 1


CONTEXT = 19  # rows that are read first


@native
@pytest.mark.long(keep=2)
@pytest.mark.parametrize("weights", ["stored", "int8"])
@pytest.mark.parametrize("name", ["dflash", "jetspec", "dspark", "gated", "dflash2"])
def test_the_core_drafts_as_jax_does(models, blocks, name, weights):
    """And the same bits alone, in a batch, and however the context was read, but for drafters with
    convolutions, which are JAX's."""
    config, params = blocks(name)
    execution = Execution.here(weights=weights)
    tiles = {
        **params,
        "target": execution.weights.prepare(copied(params["target"])),
        "drafter": execution.weights.prepare(copied(params["drafter"])),
    }

    def drafted(texts, *chunks):
        cache, first = texts.empty(), 0
        for last in chunks:
            cache = texts.read(cache, first, last - first, 64 if first else 0)
            first = last
        return texts.draft(cache, CONTEXT, 2)[1].candidates

    texts = Texts.random(models.target, config, tiles, 4, execution=execution)
    jitted = jax.jit(lambda: drafted(texts, CONTEXT))
    calls = str(jitted.trace().jaxpr)
    convolves = config.conv_group_size is not None
    assert ("dart_layers" in calls) != convolves
    assert ("dart_attention" in calls) == convolves

    whole = jitted()
    by_jax = Texts.random(models.target, config, params, 4)
    plain = jax.jit(lambda: drafted(by_jax, CONTEXT))()
    # What is drafted later depends on the tokens before it.
    same, rounding = ([0], 0.1) if weights == "int8" else ([*range(config.num_positions)], 1e-5)
    scale = float(jnp.abs(plain.logits).max())
    ours, theirs = (x.logits[:, same] for x in (whole, plain))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=rounding * scale)
    if weights == "stored":
        np.testing.assert_array_equal(whole.ids, plain.ids)
    texts.tokens, texts.features = texts.tokens[1:2], texts.features[1:2]
    alone = jax.jit(lambda: drafted(texts, 5, CONTEXT))()
    for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours[0], theirs[1], atol=1e-6 * convolves, rtol=0)


@pytest.mark.parametrize("name", ["dspark", "dflash2"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_sums_along_the_walk(models, blocks, name, temperature):
    """Of each position's candidates, logit and score of the pair with the walk's token make the
    sum by which they were chosen; at a temperature it is divided, and has the draw's noise."""
    (config, params), k = blocks(name), 6
    texts = Texts.random(models.target, config, params, k)
    sampling, last = Sampling(temperature).values(), jnp.array([5, 1, 3], jnp.int32)

    @jax.jit
    def run():
        depth, vocab = config.num_positions + 1, models.target.vocab_size
        noise = noise_at(sampling, keys_of(5, 3), last + 2, depth, vocab, core=False)
        _, proposal, root, normed, logits = texts.draft(texts.empty(), 0, last, sampling, noise)
        drafter = texts.drafter()
        chain = jnp.concatenate([root, proposal.candidates.ids[:, :-1, 0]], axis=1)
        scores = drafter.pairs.all_next(drafter.pairs.factors(normed, chain))
        if config.selector_top_k is not None:
            least = jax.lax.top_k(logits, config.selector_top_k)[0][..., -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        sums = logits + scores
        if noise is not None:
            sums = (sums - sums.max(-1, keepdims=True)) / temperature
            sums += jnp.take(noise.table[:, : depth - 1], params["draft_ids"], axis=-1)
        return proposal.candidates, sums

    candidates, sums = run()
    draft_ids = np.asarray(params["draft_ids"])
    best = np.argsort(-np.asarray(sums), axis=-1)[..., :k]
    np.testing.assert_array_equal(candidates.ids, draft_ids[best])
    found = np.asarray(candidates.logits).copy()
    found[:, 1:] += np.asarray(candidates.pairs)[:, :, 0]
    np.testing.assert_allclose(found, np.take_along_axis(np.asarray(sums), best, -1), atol=1e-4)
    assert np.abs(candidates.pairs).max() > 0.1


def test_confidence_without_pairs(models, blocks):
    """Of every position."""
    config, params = blocks("dspark")
    config = dataclasses.replace(config, pair_rank=0, confidence="hidden")
    drafter = {name: part for name, part in params["drafter"].items() if name != "pairs"}
    weight = drafter["confidence"]["weight"][:, : config.hidden_size]
    for bias, expected in ((50.0, 1), (-50.0, 0)):
        drafter["confidence"] = {"weight": weight, "bias": jnp.full((1,), bias)}
        texts = Texts.random(models.target, config, {**params, "drafter": drafter}, 6)
        confidence = jax.jit(lambda texts=texts: texts.draft(texts.empty(), 0, 2)[1].confidence)()
        assert confidence.shape == (3, config.num_positions)
        np.testing.assert_allclose(confidence, expected, atol=1e-6)
