"""Losslessness: DART emits the tokens of plain decoding, in bursts of any length, for any trees."""

import dataclasses

import numpy as np
import pytest
from conftest import MAX_LENGTH, SEED, Oracle, sequences
from decoding import Options, Prompts, begin, generate, generate_stepwise, stream

from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.decoder import Decoder
from dart_jax.engine.programs import burst, read_chunk
from dart_jax.errors import UserError
from dart_jax.ngram import NgramModel

GREEDY, SAMPLED, NUCLEUS = Sampling(), Sampling(1.0), Sampling(0.8, top_k=20, top_p=0.9)
PENALIZED = Sampling(0.7, min_p=0.05, repetition_penalty=1.3)
CASES = [(GREEDY, 4), (GREEDY, 60), (SAMPLED, 8), (NUCLEUS, 4), (NUCLEUS, 60), (PENALIZED, 16)]
BURSTS = [generate_stepwise, generate]


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"T{case[0].temperature}-{case[1]}nodes"
)
def case(request, models):
    """A config and how the target draws."""
    sampling, nodes = request.param
    return DecodeConfig(models.target, models.drafter, nodes=nodes), sampling


@pytest.fixture(scope="module")
def greedy(models):
    return DecodeConfig(models.target, models.drafter, nodes=60)


@pytest.fixture(scope="module")
def truth(prompts, plain):
    """Prompts and their continuation by plain decoding."""
    return lambda sampling: sequences(prompts, plain(sampling).tokens)


def lists(tokens):
    return [row.tolist() for row in tokens]


@pytest.mark.long
def test_plain_decoding_fills_the_cache(prompts, plain):
    for sampling in (GREEDY, SAMPLED, NUCLEUS, PENALIZED):
        generation = plain(sampling)
        assert [len(tokens) for tokens in generation.tokens] == [47, 54, 50, 49]
        np.testing.assert_array_equal(generation.steps, prompts.max_new_tokens - 1)
        np.testing.assert_array_equal(generation.tau, np.ones(4))


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, NUCLEUS, PENALIZED])
def test_plain_loops_agree(models, prompts, plain, sampling):
    config = DecodeConfig(models.target)
    fused = generate(config, models.params, None, prompts, Options(sampling, seed=SEED))
    assert lists(fused.tokens) == lists(plain(sampling).tokens)
    np.testing.assert_array_equal(fused.steps, plain(sampling).steps)


@pytest.mark.long(keep=3)
@pytest.mark.parametrize("drafting", ["search", "search with n-grams", "oracle"])
def test_dart_is_plain_decoding(models, prompts, plain, truth, case, drafting):
    config, sampling = case
    if drafting == "oracle":
        pruner = Oracle(config, truth(sampling))
    else:
        ngram = NgramModel.count(truth(sampling)) if drafting == "search with n-grams" else None
        pruner = HostSearch(config.host_buffer, config.nodes, ngram=ngram)
    options = Options(sampling, seed=SEED)
    generation = generate_stepwise(config, models.params, pruner, prompts, options)
    assert lists(generation.tokens) == lists(plain(sampling).tokens)
    assert generation.tau.min() > (2 if drafting == "oracle" else 0.99)


@pytest.mark.long(keep=1)
def test_fused_dart_is_streaming_dart(models, prompts, plain, truth, case):
    config, sampling = case
    oracle, options = Oracle(config, truth(sampling)), Options(sampling, seed=SEED)
    fused, streaming = (
        loop(config, models.params, oracle, prompts, options) for loop in reversed(BURSTS)
    )
    assert lists(fused.tokens) == lists(streaming.tokens) == lists(plain(sampling).tokens)
    assert lists(fused.drafted) == lists(streaming.drafted)
    np.testing.assert_array_equal(fused.steps, streaming.steps)
    assert fused.tau.min() > 2


def test_fused_search(models, prompts, plain, truth, greedy):
    pruner = HostSearch(greedy.host_buffer, greedy.nodes, ngram=NgramModel.count(truth(GREEDY)))
    options = Options(seed=SEED)
    generation = generate(greedy, models.params, pruner, prompts, options)
    assert lists(generation.tokens) == lists(plain(GREEDY).tokens)
    assert 0 < generation.seconds["search"] < generation.seconds["device"]


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("loop", BURSTS)
@pytest.mark.parametrize(("sampling", "nodes"), [(GREEDY, 59), (SAMPLED, 8), (PENALIZED, 20)])
def test_eagle3_is_plain_decoding(models, prompts, plain, loop, sampling, nodes):
    config = DecodeConfig(models.target, models.eagle, nodes=nodes)
    generation = loop(config, models.eagle_params, None, prompts, Options(sampling, seed=SEED))
    assert lists(generation.tokens) == lists(plain(sampling).tokens)
    assert sum(map(sum, generation.drafted)) > 0


def test_plain_tokens_are_the_targets_own(plain):
    assert not any(drafted.any() for drafted in plain(GREEDY).drafted)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("loop", BURSTS)
def test_every_step_ends_on_a_token_of_the_target(models, prompts, truth, greedy, loop):
    """On a path with 3 true levels, 3 tokens are drafted and the 4th is the bonus token."""
    oracle = Oracle(greedy, truth(GREEDY), levels=3)
    budget = np.array([9, 8, 5, 1], np.int32)
    prompts = dataclasses.replace(prompts, max_new_tokens=budget)
    generation = loop(greedy, models.params, oracle, prompts, Options(seed=SEED))
    pattern = [False, *[True, True, True, False] * 2]
    assert lists(generation.drafted) == [pattern[:n] for n in budget]


@pytest.mark.long
def test_option_values_do_not_recompile(models, prompts):
    """Other temperatures, filters, penalties, seeds and stop ids run the same program."""
    config = DecodeConfig(models.target)
    for options in (
        Options(Sampling(0.5, 10, 0.9, 0.1, 1.1), stop=(1, 2), seed=1),
        Options(Sampling(1.5, 77, 0.4, 0.3, 0.9), stop=(5,), seed=2),
    ):
        generate(config, models.params, None, prompts, options)
        compiled = burst._cache_size(), read_chunk._cache_size()
        if options.seed == 1:
            before = compiled
    assert compiled == before


def test_one_program_serves_all_searches(models, prompts, plain, truth, greedy):
    for seed in (1, 2):
        ngram = NgramModel.count(truth(GREEDY)[:seed])
        pruner = HostSearch(greedy.host_buffer, greedy.nodes, ngram=ngram)
        generation = generate(greedy, models.params, pruner, prompts)
        assert lists(generation.tokens) == lists(plain(GREEDY).tokens)
        if seed == 1:
            before = burst._cache_size()
    assert burst._cache_size() == before


def test_rows_can_be_ended(models, prompts, plain, truth, greedy):
    """A row that is ended emits nothing more; the others are unaffected."""
    oracle = Oracle(greedy, truth(GREEDY), levels=3)
    batch = begin(greedy, models.params, oracle, prompts, Options(seed=SEED), steps=1)
    for _ in range(2):
        batch.burst()
    batch.end(0)
    batch.end(3)
    for _ in batch:
        pass
    expected = lists(plain(GREEDY).tokens)
    tokens = lists(batch.generation().tokens)
    assert tokens == [expected[0][:5], expected[1], expected[2], expected[3][:5]]


def test_seeds_give_different_samples(models, prompts, plain):
    config, options = DecodeConfig(models.target), Options(SAMPLED, seed=SEED + 1)
    other = generate_stepwise(config, models.params, None, prompts, options)
    for ours, theirs in zip(plain(SAMPLED).tokens, other.tokens, strict=True):
        assert ours.tolist() != theirs.tolist()


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(
    ("sampling", "rows"), [(GREEDY, [0, 1, 2]), (NUCLEUS, [0])], ids=["greedy", "nucleus"]
)
def test_a_batch_is_its_prompts_alone(models, prompts, plain, truth, sampling, rows):
    """Noise depends on a row's place in the batch, so a sampled prompt must stay in row 0."""
    config = DecodeConfig(models.target, models.drafter, nodes=60)
    options = Options(sampling, seed=SEED)
    for row in rows:
        prompt = prompts.tokens[row, : prompts.length[row]]
        alone = Prompts.pad([prompt], 1000, MAX_LENGTH)
        oracle = Oracle(config, [truth(sampling)[row]])
        [tokens] = generate_stepwise(config, models.params, oracle, alone, options).tokens
        assert tokens.tolist() == plain(sampling).tokens[row].tolist()


@pytest.fixture(scope="module")
def eight(models):
    return DecodeConfig(models.target, models.drafter, nodes=8)


@pytest.fixture(scope="module")
def ending(plain):
    """Stop ids that end row 0 inside an accepted path and row 1 in its prefill."""
    row, other, *_ = lists(plain(GREEDY).tokens)
    # If trees contain only the true path, the prefill emits one token and every step nine.
    inside = next(t for i, t in enumerate(row) if row.index(t) == i > 9 and i % 9 not in (0, 1))
    return Options(stop=(inside, other[0]))


@pytest.fixture(scope="module")
def cut(plain, ending):
    """Plain decoding's tokens up to the first stop id."""
    return [
        row[: next((i + 1 for i, token in enumerate(row) if token in ending.stop), len(row))]
        for row in lists(plain(GREEDY).tokens)
    ]


def test_stop_ids_end_plain_decoding(models, prompts, ending, cut):
    config = DecodeConfig(models.target)
    assert lists(generate_stepwise(config, models.params, None, prompts, ending).tokens) == cut


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("loop", BURSTS)
def test_stop_ids_end_dart(models, prompts, truth, eight, ending, cut, loop):
    oracle = Oracle(eight, truth(GREEDY), levels=8)
    generation = loop(eight, models.params, oracle, prompts, ending)
    assert lists(generation.tokens) == cut
    assert generation.steps[1] == 0
    # All tokens of a path that is cut were drafted.
    assert generation.drafted[0][-1]


def test_a_stop_id_cuts_an_accepted_path(models, prompts, truth, eight, ending, cut):
    oracle = Oracle(eight, truth(GREEDY), levels=8)
    steps = stream(eight, models.params, oracle, prompts, ending)
    sizes = [len(step[0].tokens) for step in steps if 0 in step]
    assert sizes[:-1] == [1] + [9] * (len(sizes) - 2)
    assert 1 < sizes[-1] < 9
    assert sum(sizes) == len(cut[0]) < prompts.max_new_tokens[0]


@pytest.mark.parametrize("loop", BURSTS)
def test_budgets_are_kept_to(models, prompts, plain, truth, greedy, loop):
    budget = np.array([1, 54, 2, 5], np.int32)
    prompts = dataclasses.replace(prompts, max_new_tokens=budget)
    oracle = Oracle(greedy, truth(GREEDY), levels=8)
    generation = loop(greedy, models.params, oracle, prompts, Options(seed=SEED))
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
        ([[1]], 0, "max_new_tokens must be in 1..2147483647, got 0"),
        ([[1] * 10], 5, "10 tokens leaves no room in 10 positions"),
        ([[1, 12]], 5, r"prompt tokens must be in 0\.\.11"),
        ([[1, -1]], 5, r"prompt tokens must be in 0\.\.11"),
        ([[2**32 + 1]], 5, r"prompt tokens must be in 0\.\.11"),
    ],
)
def test_prompts_that_cannot_be_decoded(models, rows, max_new_tokens, message):
    rows = [np.array(row, np.int64) for row in rows]
    target = dataclasses.replace(models.target, vocab_size=12)
    decoder = Decoder(DecodeConfig(target), {}, None, 10, GREEDY, ())
    with pytest.raises(UserError, match=message) as error:
        decoder.start(rows, max_new_tokens)
    assert "\n" not in str(error.value)
