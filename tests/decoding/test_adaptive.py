"""Steps that choose the sizes of their trees: whatever they choose, the output is the target's."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED, Oracle, sequences

from dart_jax.decoding.adaptive import step as adaptive_steps
from dart_jax.decoding.adaptive.acceptance import AcceptanceRates, expected, learn
from dart_jax.decoding.adaptive.memory import TreeMemory
from dart_jax.decoding.adaptive.policy import (
    LONGEST_PAUSE,
    REST,
    Learned,
    Policy,
    TreeCosts,
    account,
    choose,
)
from dart_jax.decoding.adaptive.step import adaptive_step, resume, single_plain_step, start_adapting
from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.logits import LogitsConfig
from dart_jax.decoding.loop import generate_fused, generate_streaming, measure_costs, start, stream
from dart_jax.decoding.prompts import Options
from dart_jax.decoding.pruner import Pruner
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.generation.defaults import adaptive_tree
from dart_jax.model import DartModel
from dart_jax.ngram import NgramModel

GREEDY = Sampling()
PENALIZED = Sampling(0.8, top_k=20, top_p=0.9, repetition_penalty=1.3)
LOOPS = [generate_streaming, generate_fused]
SIZES = (0, 1, 3, 8)
NODES = SIZES[-1]

# Chosen at random. Compiled programs are kept by sizes, so no other test has these.
RANDOM_SIZES = (0, 2, 8)


def lists(tokens):
    return [row.tolist() for row in tokens]


def policy_of(*steps, plain=1.0, nodes=NODES):
    return Policy.start(TreeCosts(jnp.array(steps, jnp.float32), jnp.float32(plain)), nodes)


@pytest.fixture
def at_random(monkeypatch):
    """Steps choose and pause at random, as their drafts' probabilities fall."""

    def any_size(policy, sizes, probability, active):
        draw = (jnp.sum(probability) * 1e4).astype(jnp.int32)
        return draw % len(sizes), jnp.float32(1)

    def any_pause(policy, size, expected, emitted):
        draw = (jnp.sum(policy.rates.score) * 1e4).astype(jnp.int32) + size
        return policy._replace(size=size, wait=jnp.where(draw % 3 == 0, 1 + draw % 5, 0))

    monkeypatch.setattr(adaptive_steps, "choose", any_size)
    monkeypatch.setattr(adaptive_steps, "account", any_pause)


@pytest.fixture(scope="module")
def methods(models, plain):
    """Method -> its drafter, parameters and search."""
    target = {"target": models.params["target"], "drafter": models.params["target"]}
    ngram = NgramModel.count(plain(GREEDY).tokens)
    return {
        "dart": (models.drafter, models.params, ngram),
        "eagle3": (models.eagle, models.eagle_params, None),
        "draft model": (models.target, target, None),
        "prompt lookup": (PromptLookupConfig(), models.params, None),
        "n-gram": (NgramConfig(), models.params, ngram),
    }


@pytest.mark.long(keep=3)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("sampling", [GREEDY, PENALIZED])
@pytest.mark.parametrize("name", ["dart", "eagle3", "draft model", "prompt lookup", "n-gram"])
def test_whatever_is_chosen_the_tokens_are_plain_decodings(
    models, prompts, plain, methods, at_random, loop, sampling, name
):
    drafter, params, ngram = methods[name]
    config = DecodeConfig(models.target, drafter, NODES, RANDOM_SIZES)
    pruner = Pruner(config.host_buffer, NODES, ngram=ngram) if config.searches else None
    learned = Learned(policy_of(1, 1, 1))
    options = Options(sampling, seed=SEED)
    generation = loop(config, params, pruner, prompts, options, learned)
    assert lists(generation.tokens) == lists(plain(sampling).tokens)
    assert int(learned.policy.wait) == 0
    if name == "draft model" and sampling == GREEDY:  # the target drafts for itself
        assert generation.tau.min() > 1


@pytest.mark.long
def test_both_loops_choose_alike(models, prompts, plain, at_random):
    config = DecodeConfig(models.target, models.drafter, NODES, RANDOM_SIZES)
    truth = sequences(prompts, plain(GREEDY).tokens)
    oracle, options = Oracle(config, truth), Options(seed=SEED)
    fused, streaming = (
        loop(config, models.params, oracle, prompts, options, Learned(policy_of(1, 1, 1)))
        for loop in LOOPS
    )
    assert lists(fused.tokens) == lists(streaming.tokens) == lists(plain(GREEDY).tokens)
    assert lists(fused.drafted) == lists(streaming.drafted)
    np.testing.assert_array_equal(fused.steps, streaming.steps)
    assert fused.tau.min() > 1


@pytest.mark.parametrize("loop", LOOPS)
def test_reported_scores_are_plain_decodings(models, prompts, plain, at_random, loop):
    logits = LogitsConfig(logprobs=2)
    config = DecodeConfig(models.target, PromptLookupConfig(), NODES, RANDOM_SIZES, logits=logits)
    options, learned = Options(seed=SEED), Learned(policy_of(1, 1, 1))
    ours = loop(config, models.params, None, prompts, options, learned)
    theirs = loop(dataclasses.replace(config.plain), models.params, None, prompts, options)
    assert lists(ours.tokens) == lists(theirs.tokens)
    for one, other in zip(ours.scores, theirs.scores, strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), one, other)


@pytest.mark.parametrize(("index", "size"), list(enumerate(SIZES)))
def test_the_cheapest_size_is_verified(models, prompts, plain, index, size):
    """Where one size costs nothing and the others too much, trees of that size are verified."""
    config = DecodeConfig(models.target, models.drafter, NODES, SIZES)
    oracle = Oracle(config, sequences(prompts, plain(GREEDY).tokens), levels=8)
    costs = np.where(np.arange(len(SIZES)) == index, 0, np.inf)
    learned = Learned(policy_of(*costs))
    steps = stream(
        config, models.params, oracle, prompts, Options(seed=SEED), learned, with_drafts=True
    )
    next(steps)
    for step in steps:
        assert step.drafts.trees.shape[2] == size + 1
        assert max(map(len, step.tokens)) <= size + 1


@pytest.mark.parametrize("name", ["dart", "eagle3", "draft model", "prompt lookup"])
def test_after_a_pause_the_drafter_has_read_everything(models, prompts, methods, name):
    """A pause, then a draft: the same draft as without the pause."""
    drafter, params, _ = methods[name]
    config = DecodeConfig(models.target, drafter, NODES, SIZES)
    trees = np.zeros((len(prompts.tokens), 3, NODES + 1), np.int32)

    def drafted(state, packed):
        found = [np.asarray(packed)[:, config.host_buffer.first :]]
        return [
            *found,
            *map(np.asarray, (x for x in (state.trees, state.tree_scores) if x is not None)),
        ]

    def begun():
        state, packed = start(config, params, prompts, Options(seed=SEED))
        return start_adapting(config, state, policy_of(0, *[np.inf] * 3)), packed

    state, packed = begun()
    for _ in range(5):  # steps that verify only the root
        roots = np.asarray(packed)[:, config.host_buffer.root]
        trees[:, 0, 0] = roots
        found = (
            (jnp.asarray(trees), jnp.zeros((len(roots), NODES + 1))) if config.searches else None
        )
        state, packed = adaptive_step(config, params, state, found)
    expected_draft = drafted(state, packed)

    state, packed = begun()
    for _ in range(5):
        state, packed = single_plain_step(config, params, state)
    assert int(state.adaptive.pending.count) == 5
    state, packed = resume(config, params, state)
    assert int(state.adaptive.pending.count) == 0
    for ours, theirs in zip(drafted(state, packed), expected_draft, strict=True):
        if ours.dtype == np.int32 and name == "dart":
            ours, theirs = (x[:, : x.shape[1] // 2] for x in (ours, theirs))  # ids, not bits
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_costs_are_measured_for_every_size(models, prompts):
    config = DecodeConfig(models.target, PromptLookupConfig(), NODES, SIZES)
    for fused in (False, True):
        costs = measure_costs(config, models.params, None, prompts, Options(seed=SEED), fused=fused)
        assert costs.steps.shape == (len(SIZES),)
        assert 0 < float(costs.plain) < 1
        assert (np.asarray(costs.steps) > 0).all()


# What is learned


def one_tree(*nodes):
    """Packed trees of one row: (token, parent) of each node after the root."""
    tree = np.zeros((1, 3, len(nodes) + 1), np.int32)
    for place, (token, parent) in enumerate(nodes, 1):
        tree[0, :, place] = token, parent, tree[0, 2, parent] + 1
    return jnp.asarray(tree)


def test_nodes_are_judged_by_what_was_emitted_verified_or_not():
    #        1: right  2: right    3: wrong  4: below wrong  5: below what was emitted
    tree = one_tree((7, 0), (8, 1), (6, 0), (9, 3), (4, 2))
    scores = jnp.linspace(0, -5, 6)[None]
    none = AcceptanceRates(*(jnp.zeros(6),) * 3)
    rates = learn(none, tree, scores, jnp.array([[7, 8, 0]]), jnp.array([2]))
    assert rates.accepted.tolist() == [0, 1, 1, 0, 0, 0]
    assert rates.known.tolist() == [0, 1, 1, 1, 1, 0]
    np.testing.assert_allclose(rates.score[1:5], scores[0, 1:5])


def test_rows_that_emit_nothing_teach_nothing():
    prior = AcceptanceRates.prior(2)
    tree, scores = one_tree((7, 0), (8, 1)), jnp.zeros((1, 3))
    rates = learn(prior, tree, scores, jnp.array([[7, 8]]), jnp.array([0]))
    np.testing.assert_allclose(rates.accepted / rates.known, prior.accepted / prior.known)


def test_what_is_accepted_often_becomes_likely():
    tree, rates = one_tree((7, 0), (8, 1)), AcceptanceRates.prior(2)
    scores = jnp.array([[0.0, -1.0, -2.0]])
    for step in range(200):
        right = jnp.array([[7, 8 if step % 4 == 0 else 1]])
        rates = learn(rates, tree, scores, right, jnp.array([2]))
    root, always, sometimes = expected(rates, tree, scores)[0].tolist()
    assert root == 0
    assert always > 0.99
    assert 0.2 < sometimes < 0.3
    better = expected(rates, tree, scores + 1)[0, 2]
    assert better > sometimes + 0.1


# What is chosen


@pytest.mark.parametrize(
    ("probability", "steps", "best"),
    [
        ([1.0] * 8, [1.5, 1.6, 1.8, 2.3], 3),  # every node is accepted
        ([0.0] * 8, [1.5, 1.6, 1.8, 2.3], 0),  # none is
        ([0.9, 0.5, 0.4, *[0.01] * 5], [1.5, 1.6, 1.8, 2.3], 2),
        ([0.9, 0.5, 0.4, *[0.01] * 5], [1.5, 1.5, 1.5, 1.5], 3),  # more cost nothing
        ([0.9, 0.1, 0.1, *[0.01] * 5], [1.5, 1.6, 1.9, 2.3], 1),
    ],
)
def test_the_size_that_gains_most_is_chosen(probability, steps, best):
    rows = jnp.array([[0.0, *probability]] * 2)
    rows = rows.at[1].set(5.0)  # a finished row does not count
    size, tokens = choose(policy_of(*steps), SIZES, rows, jnp.array([True, False]))
    assert int(size) == best
    np.testing.assert_allclose(tokens, 1 + sum(probability[: SIZES[best]]), rtol=1e-5)


def test_a_loss_leads_to_ever_longer_pauses_and_then_to_a_rest():
    policy, pauses = policy_of(2, 2, 2, 2), []
    for _ in range(40):
        policy = account(policy, jnp.int32(0), jnp.float32(1), jnp.float32(1))
        pauses.append(int(policy.wait))
    assert pauses[0] == 0
    longer = [pause for pause in pauses if pause]
    assert longer[:3] == [16, 32, 64]
    assert longer[2] == LONGEST_PAUSE
    assert set(longer[3:]) == {REST}


def test_a_gain_never_pauses():
    policy = policy_of(2, 2, 2, 2)
    for _ in range(40):
        policy = account(policy, jnp.int32(3), jnp.float32(3), jnp.float32(1))
        assert int(policy.wait) == 0


# What is kept


def test_costs_are_measured_once(tmp_path):
    calls = []

    def measure():
        calls.append(1)
        return TreeCosts(jnp.array([2.0, 3.0]), jnp.float32(1))

    memory = TreeMemory(tmp_path)
    first = memory.policy("program", "greedy", 2, measure)
    assert memory.policy("program", "greedy", 2, measure) is first
    assert memory.policy("program", "sampled", 2, measure) is not first
    again = TreeMemory(tmp_path).policy("program", "greedy", 2, measure)
    assert len(calls) == 1
    assert again.policy.costs.steps.tolist() == [2, 3]
    TreeMemory(tmp_path).policy("another program", "greedy", 2, measure)
    TreeMemory().policy("program", "greedy", 2, measure)
    assert len(calls) == 3


def test_damaged_costs_are_measured_again(tmp_path):
    def measure():
        return TreeCosts(jnp.array([2.0]), jnp.float32(1))

    TreeMemory(tmp_path).policy("program", "greedy", 2, measure)
    [file] = tmp_path.glob("*.json")
    file.write_text("{")
    TreeMemory(tmp_path).policy("program", "greedy", 2, measure)
    assert json.loads(file.read_text()) == {"steps": [2.0], "plain": 1.0}


# For users


def test_adaptive_generation_gives_the_same_text():
    model = DartModel.demo()
    prompt = "def mean(values):\n"
    plain = model.generate(prompt, max_new_tokens=48, tree_nodes=0)
    adaptive = model.generate(prompt, max_new_tokens=48, tree_nodes="adaptive")
    assert adaptive.text == plain.text
    streamed = model.stream(prompt, max_new_tokens=48, tree_nodes="adaptive")
    assert "".join(streamed) == plain.text


@pytest.mark.parametrize("sizes", [(1, 8), (0, 4), (0, 8, 4), (0, 4, 4, 8)])
def test_sizes_out_of_order(sizes):
    with pytest.raises(UserError, match="must ascend from 0 to 8 nodes"):
        DartModel.demo().decoder(nodes=8, max_length=128, sizes=sizes)


@pytest.mark.parametrize("batch", [1, 64])
def test_sizes_to_choose_from(models, batch):
    for drafter in (None, models.eagle, models.target, PromptLookupConfig(), NgramConfig()):
        sizes, _ = adaptive_tree(drafter, batch)
        assert sizes[0] == 0
        assert list(sizes) == sorted(set(sizes))
