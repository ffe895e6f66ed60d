"""Losslessness: DART emits what plain decoding emits, in either loop, however trees look."""

import dataclasses

import numpy as np
import pytest
from conftest import MAX_LENGTH, SEED, Oracle, sequences

from dart_jax.errors import UserError
from dart_jax.loop import Prompts, generate_fused, generate_streaming, stream
from dart_jax.ngram import NgramModel
from dart_jax.pruner import Pruner
from dart_jax.sampling import Sampling
from dart_jax.step import DecodeConfig

GREEDY, SAMPLED, NUCLEUS = Sampling(), Sampling(1.0), Sampling(0.8, top_k=20, top_p=0.9)
CASES = [(GREEDY, 4), (GREEDY, 60), (SAMPLED, 8), (NUCLEUS, 4), (NUCLEUS, 60)]
LOOPS = [generate_streaming, generate_fused]


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"T{case[0].temperature}-{case[1]}nodes"
)
def config(request, models):
    sampling, nodes = request.param
    return DecodeConfig(models.target, models.drafter, nodes=nodes, sampling=sampling)


@pytest.fixture(scope="module")
def greedy(models):
    return DecodeConfig(models.target, models.drafter, nodes=60)


@pytest.fixture(scope="module")
def truth(prompts, plain):
    """Prompts and what plain decoding gives, for any config's sampling."""
    return lambda config: sequences(prompts, plain(config.sampling).tokens)


def lists(tokens):
    return [row.tolist() for row in tokens]


def test_plain_decoding_fills_the_cache(prompts, plain):
    for sampling in (GREEDY, SAMPLED, NUCLEUS):
        generation = plain(sampling)
        assert [len(tokens) for tokens in generation.tokens] == [47, 54, 50, 49]
        np.testing.assert_array_equal(generation.steps, prompts.max_new_tokens - 1)
        np.testing.assert_array_equal(generation.tau, np.ones(4))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, NUCLEUS])
def test_plain_loops_agree(models, prompts, plain, sampling):
    config = DecodeConfig(models.target, sampling=sampling)
    fused = generate_fused(config, models.params, None, prompts, seed=SEED)
    assert lists(fused.tokens) == lists(plain(sampling).tokens)
    np.testing.assert_array_equal(fused.steps, plain(sampling).steps)


@pytest.mark.parametrize("drafting", ["search", "search with n-grams", "oracle"])
def test_dart_is_plain_decoding(models, prompts, plain, truth, config, drafting):
    if drafting == "oracle":
        pruner = Oracle(config, truth(config))
    else:
        ngram = NgramModel.count(truth(config)) if drafting == "search with n-grams" else None
        pruner = Pruner(config.handover, config.nodes, ngram=ngram)
    generation = generate_streaming(config, models.params, pruner, prompts, seed=SEED)
    assert lists(generation.tokens) == lists(plain(config.sampling).tokens)
    assert generation.tau.min() > (2 if drafting == "oracle" else 0.99)


def test_fused_dart_is_streaming_dart(models, prompts, plain, truth, config):
    oracle = Oracle(config, truth(config))
    fused, streaming = (
        loop(config, models.params, oracle, prompts, seed=SEED) for loop in reversed(LOOPS)
    )
    assert lists(fused.tokens) == lists(streaming.tokens) == lists(plain(config.sampling).tokens)
    np.testing.assert_array_equal(fused.steps, streaming.steps)
    assert fused.tau.min() > 2


def test_fused_search(models, prompts, plain, truth, greedy):
    pruner = Pruner(greedy.handover, greedy.nodes, ngram=NgramModel.count(truth(greedy)))
    generation = generate_fused(greedy, models.params, pruner, prompts, seed=SEED)
    assert lists(generation.tokens) == lists(plain(GREEDY).tokens)
    assert 0 < generation.seconds["search"] < generation.seconds["device"]


def test_seeds_give_different_samples(models, prompts, plain):
    config = DecodeConfig(models.target, sampling=SAMPLED)
    other = generate_streaming(config, models.params, None, prompts, seed=SEED + 1)
    for ours, theirs in zip(plain(SAMPLED).tokens, other.tokens, strict=True):
        assert ours.tolist() != theirs.tolist()


@pytest.mark.parametrize(
    ("sampling", "rows"), [(GREEDY, [0, 1, 2]), (NUCLEUS, [0])], ids=["greedy", "nucleus"]
)
def test_a_batch_is_its_prompts_alone(models, prompts, plain, truth, sampling, rows):
    """Noise depends on a row's place in the batch, so a sampled prompt must stay in row 0."""
    config = DecodeConfig(models.target, models.drafter, nodes=60, sampling=sampling)
    for row in rows:
        prompt = prompts.tokens[row, : prompts.length[row]]
        alone = Prompts.pad([prompt], 1000, MAX_LENGTH, models.target.vocab_size)
        oracle = Oracle(config, [truth(config)[row]])
        [tokens] = generate_streaming(config, models.params, oracle, alone, seed=SEED).tokens
        assert tokens.tolist() == plain(sampling).tokens[row].tolist()


@pytest.fixture(scope="module")
def ending(models, plain):
    """A config whose EOS ids end row 0 inside an accepted path and row 1 in its prefill."""
    config = DecodeConfig(models.target, models.drafter, nodes=8)
    row, other, *_ = lists(plain(GREEDY).tokens)
    # With trees that are the true path alone, the prefill wins one token and every step nine.
    inside = next(t for i, t in enumerate(row) if row.index(t) == i > 9 and i % 9 not in (0, 1))
    return dataclasses.replace(config, eos=(inside, other[0]))


@pytest.fixture(scope="module")
def cut(plain, ending):
    """Plain decoding's tokens up to the first EOS."""
    return [
        row[: next((i + 1 for i, token in enumerate(row) if token in ending.eos), len(row))]
        for row in lists(plain(GREEDY).tokens)
    ]


def test_eos_ends_plain_decoding(models, prompts, ending, cut):
    config = dataclasses.replace(ending, drafter=None, nodes=0)
    assert lists(generate_streaming(config, models.params, None, prompts).tokens) == cut


@pytest.mark.parametrize("loop", LOOPS)
def test_eos_ends_dart(models, prompts, truth, ending, cut, loop):
    oracle = Oracle(ending, truth(ending), levels=8)
    generation = loop(ending, models.params, oracle, prompts)
    assert lists(generation.tokens) == cut
    assert generation.steps[1] == 0


def test_eos_cuts_an_accepted_path(models, prompts, truth, ending, cut):
    oracle = Oracle(ending, truth(ending), levels=8)
    won = [rows[0] for rows in stream(ending, models.params, oracle, prompts)]
    sizes = [len(tokens) for tokens in won if len(tokens)]
    assert sizes[:-1] == [1] + [9] * (len(sizes) - 2)
    assert 1 < sizes[-1] < 9
    assert sum(sizes) == len(cut[0]) < prompts.max_new_tokens[0]


@pytest.mark.parametrize("loop", LOOPS)
def test_budgets_are_kept_to(models, prompts, plain, truth, greedy, loop):
    budget = np.array([1, 54, 2, 5], np.int32)
    prompts = dataclasses.replace(prompts, max_new_tokens=budget)
    oracle = Oracle(greedy, truth(greedy), levels=8)
    generation = loop(greedy, models.params, oracle, prompts, seed=SEED)
    assert lists(generation.tokens) == [
        tokens[:n].tolist() for tokens, n in zip(plain(GREEDY).tokens, budget, strict=True)
    ]
    np.testing.assert_array_equal(generation.steps, [0, 6, 1, 1])
    assert np.isnan(generation.tau[0])


@pytest.mark.parametrize(
    ("rows", "max_new_tokens", "message"),
    [
        ([], 5, "no prompts"),
        ([[1], []], 5, "a prompt is empty"),
        ([[1]], 0, "max-new-tokens must be at least 1, got 0"),
        ([[1] * 10], 5, "10 tokens leaves no room in a cache of 10"),
        ([[1, 12]], 5, r"prompt tokens must be in 0\.\.11"),
        ([[1, -1]], 5, r"prompt tokens must be in 0\.\.11"),
    ],
)
def test_prompts_that_cannot_be_decoded(rows, max_new_tokens, message):
    rows = [np.array(row, np.int64) for row in rows]
    with pytest.raises(UserError, match=message) as error:
        Prompts.pad(rows, max_new_tokens, max_length=10, vocab_size=12)
    assert "\n" not in str(error.value)


def test_prompts_are_padded_to_a_power_of_two():
    prompts = Prompts.pad([np.arange(5), np.arange(1)], 7, max_length=10, vocab_size=12)
    assert prompts.tokens.tolist() == [[0, 1, 2, 3, 4, 0, 0, 0], [0] * 8]
    assert prompts.length.tolist() == [5, 1]
    assert prompts.max_new_tokens.tolist() == [5, 7]
