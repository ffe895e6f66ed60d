"""The whole pipeline against what the reference implementation printed (tests/golden)."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import GOLDEN, NAMES, load_golden
from decoding import Options, Prompts, generate, stream
from literal_search import paths

from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.networks.pure import bind

EOS = (511,)
NODES = 59
STEPS = 4
TREE = ("draft_tokens", "tree_mask", "tree_position_ids")
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
def bursts(golden, config, pruner, prompts):
    """What each step gives, by row."""
    return [*stream(config, golden.params, pruner, prompts, OPTIONS, drafts=True)]


@pytest.fixture(scope="module")
def steps(bursts, prompts):
    """The tokens of the first steps, by row, and the drafts that the steps after them verified."""
    return [
        [(now[row].tokens, after[row].draft) for row in range(len(prompts.length))]
        for now, after in itertools.pairwise(bursts[: STEPS + 1])
    ]


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


@pytest.mark.parametrize("j", range(STEPS))
def test_tokens_and_draft_logits_of_every_step(golden, steps, j):
    names = ("preceding", "draft_logits")
    reference = zip(*(golden.of_prompts(name, j) for name in names), strict=True)
    draft_ids = np.asarray(golden.params["draft_ids"])
    for (tokens, draft), (preceding, logits) in zip(steps[j], reference, strict=True):
        # The reference's first step includes the prompt, the later ones the old root.
        assert tokens.tolist() == preceding[-1 if j == 0 else 1 :].tolist()
        # The candidates are the likeliest ones, the best first.
        best = np.sort(logits, axis=-1)[:, : -draft.ids.shape[1] - 1 : -1]
        np.testing.assert_allclose(draft.logits, best, rtol=0, atol=1e-4)
        at = np.searchsorted(draft_ids, draft.ids)
        of_ids = np.take_along_axis(logits, at, axis=-1)
        np.testing.assert_allclose(draft.logits, of_ids, rtol=0, atol=1e-4)


def paths_of(tokens, mask, depth):
    """The token paths from the root to every node."""
    return {tuple(tokens[seen][np.argsort(depth[seen])].tolist()) for seen in np.asarray(mask)}


@pytest.mark.parametrize("j", range(STEPS))
def test_trees_of_every_step(golden, steps, j):
    reference = zip(*(golden.of_prompts(name, j) for name in TREE), strict=True)
    for (_, draft), expected in zip(steps[j], reference, strict=True):
        assert len(paths_of(*expected)) == NODES + 1
        assert {*paths(draft.tree)} == paths_of(*expected)


@pytest.mark.parametrize("name", NAMES)
def test_first_trees_of_eagle3(name):
    golden = load_golden(name)
    reference = np.load(GOLDEN / name / "eagle3" / "golden.npz")
    config = DecodeConfig(golden.target, golden.eagle, nodes=59)
    batch = Prompts.pad(golden.of_prompts("prompt"), 64, 128)
    bursts = stream(config, golden.eagle_params, None, batch, OPTIONS, drafts=True)
    _, second = itertools.islice(bursts, 2)
    for i, output in second.items():
        expected = paths_of(*(reference[f"{part}_{i}"] for part in TREE))
        assert {*paths(output.draft.tree)} == expected


def test_generated_tokens(golden, config, bursts, prompts):
    outputs = [golden.of_prompts(name) for name in ("dart_out", "ar_out")]
    drafted, plain = ([row[n:] for row, n in zip(x, prompts.length, strict=True)] for x in outputs)
    for row, expected in enumerate(drafted):
        tokens = np.concatenate([new[row].tokens for new in bursts if row in new])
        np.testing.assert_array_equal(tokens[: len(expected)], expected)
    budget = np.array([len(output) for output in plain], np.int32)
    prompts = dataclasses.replace(prompts, max_new_tokens=budget)
    config = dataclasses.replace(config, drafter=None, nodes=0)
    generation = generate(config, golden.params, None, prompts, OPTIONS)
    for tokens, expected in zip(generation.tokens, plain, strict=True):
        np.testing.assert_array_equal(tokens, expected)
