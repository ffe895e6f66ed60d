"""The whole pipeline against what the reference implementation printed (tests/golden)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import Options, Prompts, generate, generate_stepwise, start, step

from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.tree import ancestor_mask, unpack
from dart_jax.models.pure import bind

EOS = (511,)
NODES = 59
STEPS = 4
OPTIONS = Options(stop=EOS)


@pytest.fixture(scope="module")
def config(golden):
    return DecodeConfig(golden.target, golden.drafter, nodes=NODES)


@pytest.fixture(scope="module")
def pruner(golden, config):
    return HostSearch(config.host_buffer, NODES, ngram=golden.ngram, eos=EOS)


@pytest.fixture(scope="module")
def prompts(golden):
    return Prompts.pad(golden.of_prompts("prompt"), 64, 128)


@pytest.fixture(scope="module")
def drafts(golden, config, pruner, prompts):
    """The host buffers of the prefill and the steps after it, and the trees drafted from them."""
    drafts = []
    state, packed = start(config, golden.params, prompts, OPTIONS)
    for _ in range(STEPS):
        packed = np.asarray(packed)
        drafts.append((packed, pruner(packed)))
        state, packed = step(config, golden.params, state, drafts[-1][1])
    return drafts


def test_logits_and_features(golden, prompts):
    @jax.jit
    def forward(params, tokens):
        target = bind(golden.target, params)
        t = tokens.shape[1]
        positions = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None], tokens.shape)
        out = target(tokens, positions, jnp.tril(jnp.ones((1, t, t), bool)))
        return target.logits(out.hidden), out.features

    logits, features = forward(golden.params["target"], prompts.tokens)
    for i, n in enumerate(prompts.length):
        for ours, name in ((logits, "logits"), (features, "aux")):
            expected = golden.run[f"{name}_{i}"]
            np.testing.assert_allclose(ours[i, :n], expected, rtol=0, atol=1e-4)


@pytest.mark.long(keep=1)
def test_draft_logits_of_every_step(golden, config, prompts, drafts):
    # With this many candidates the host buffer holds every draft logit.
    vocab = golden.drafter.draft_vocab_size
    config = dataclasses.replace(config, candidates=vocab)
    state, packed = start(config, golden.params, prompts, OPTIONS)
    for j, (_, trees) in enumerate(drafts):
        _, ids, logits = config.host_buffer.candidates_of(np.asarray(packed))
        by_target_id = np.full((*ids.shape[:2], golden.target.vocab_size), np.nan, np.float32)
        np.put_along_axis(by_target_id, ids, logits, axis=-1)
        draft_logits = by_target_id[..., golden.params["draft_ids"]]
        expected = golden.of_prompts("draft_logits", j)
        np.testing.assert_allclose(draft_logits, expected, rtol=0, atol=1e-4)
        state, packed = step(config, golden.params, state, trees)


@pytest.mark.parametrize("j", range(STEPS))
def test_emitted_tokens_of_every_step(golden, config, drafts, j):
    packed, _ = drafts[j]
    for newest, expected in zip(
        config.host_buffer.emitted(packed), golden.of_prompts("preceding", j), strict=True
    ):
        # The reference's first step includes the prompt, the later ones the old root.
        assert newest.tolist() == expected[-1 if j == 0 else 1 :].tolist()


def paths(tokens, mask, depth):
    """The token paths from the root to every node."""
    return {
        tuple(tokens[seen][np.argsort(depth[seen])].tolist())
        for seen in np.asarray(mask)[(depth > 0) | (np.arange(len(depth)) == 0)]
    }


@pytest.mark.parametrize("j", range(STEPS))
def test_trees_of_every_step(golden, config, drafts, j):
    _, trees = drafts[j]
    mask = ancestor_mask(unpack(jnp.asarray(trees)), config.max_depth)
    names = ("draft_tokens", "tree_mask", "tree_position_ids")
    reference = zip(*(golden.of_prompts(name, j) for name in names), strict=True)
    for (tokens, _, depth), seen, expected in zip(trees, mask, reference, strict=True):
        assert len(paths(*expected)) == NODES + 1
        assert paths(tokens, seen, depth) == paths(*expected)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("generate", [generate_stepwise, generate])
@pytest.mark.parametrize("name", ["ar_out", "dart_out"])
def test_generated_tokens(golden, config, pruner, prompts, generate, name):
    outputs = zip(golden.of_prompts(name), prompts.length, strict=True)
    expected = [output[length:].tolist() for output, length in outputs]
    budget = np.array([len(output) for output in expected], np.int32)
    prompts = dataclasses.replace(prompts, max_new_tokens=budget)
    if name == "ar_out":
        config, pruner = dataclasses.replace(config, drafter=None, nodes=0), None
    generation = generate(config, golden.params, pruner, prompts, OPTIONS)
    assert [tokens.tolist() for tokens in generation.tokens] == expected
