"""Trees whose sizes change between bursts: whatever is chosen, the output is the target's."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED, Oracle, sequences
from dart_jax.decoding.adaptive.acceptance import AcceptanceRates
from dart_jax.decoding.adaptive.costs import ENOUGH, StepCosts
from dart_jax.decoding.adaptive.memory import TreeMemory
from dart_jax.decoding.adaptive.policy import BURST, PAUSE, TRIAL, Burst, Policy, Tour
from dart_jax.decoding.adaptive.switch import Switch, TreeSize
from decoding import Options, start, step

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.logits import LogitsConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.generation.defaults import adaptive_tree, default_tree
from dart_jax.model import DartModel
from dart_jax.ngram import NgramModel

GREEDY = Sampling()
PENALIZED = Sampling(0.8, top_k=20, top_p=0.9, repetition_penalty=1.3)
SIZES = (0, 2, 8)


def streamed(switch, params, prompts, options):
    seconds = {}
    steps = stream_in_bursts(switch, params, prompts, options, seconds=seconds)
    return run_to_end(steps, seconds)


LOOPS = [streamed, generate_in_bursts]


def lists(tokens):
    return [row.tolist() for row in tokens]


class Scripted:
    """A policy that follows a script of bursts, over and over, and remembers what it is told."""

    def __init__(self, *bursts):
        self.script = itertools.cycle(bursts)
        self.told = []

    def begin(self):
        return next(self.script)

    next = begin

    def learn(self, size, ranks, trees, steps, seconds):
        self.told.append((size, sorted(ranks[ranks > 0].tolist()), trees, steps))


def at_random(seed, rest):
    """A script of bursts of random sizes and lengths, beginning with a draft; `rest` ends it with
    plain decoding to the end of the text."""
    rng = np.random.default_rng(seed)
    bursts = [Burst(int(rng.choice(SIZES[1:])), 2)]
    bursts += [Burst(int(rng.choice(SIZES)), int(rng.integers(1, 6))) for _ in range(9)]
    # After plain decoding comes a draft, as in the policy.
    bursts = [one for a, one in itertools.pairwise([bursts[0], *bursts]) if a.size or one.size]
    return Scripted(*bursts[:4], Burst(0, None)) if rest else Scripted(*bursts)


def trees_of(config, ngram=None, pruner=None):
    """What decodes with trees of each size."""
    changing = dataclasses.replace(config, nodes=SIZES[-1], pause=PAUSE)
    trees = {0: TreeSize(changing.plain, None)}
    for nodes in SIZES[1:]:
        each = dataclasses.replace(changing, nodes=nodes)
        search = None
        if each.searches:
            search = pruner or HostSearch(each.host_buffer, nodes, ngram=ngram)
        trees[nodes] = TreeSize(each, search)
    return trees


@pytest.fixture(scope="module")
def methods(models, scored, plain):
    """Method -> its drafter, parameters and search."""
    target = {"target": models.params["target"], "drafter": models.params["target"]}
    ngram = NgramModel.count(plain(GREEDY).tokens)
    return {
        "dart": (models.drafter, models.params, ngram),
        "dart with pair scores": (*scored, ngram),
        "eagle3": (models.eagle, models.eagle_params, None),
        "draft model": (models.target, target, None),
        "prompt lookup": (PromptLookupConfig(), models.params, None),
        "n-gram": (NgramConfig(), models.params, ngram),
    }


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("sampling", [GREEDY, PENALIZED])
@pytest.mark.parametrize(
    "name", ["dart", "dart with pair scores", "eagle3", "draft model", "prompt lookup", "n-gram"]
)
def test_whatever_is_chosen_the_tokens_are_plain_decodings(
    models, prompts, plain, methods, loop, sampling, name
):
    drafter, params, ngram = methods[name]
    trees = trees_of(DecodeConfig(models.target, drafter), ngram)
    for seed, rest in ((1, False), (2, True)):
        switch = Switch(trees, params, at_random(seed, rest))
        generation = loop(switch, params, prompts, Options(sampling, seed=SEED))
        assert lists(generation.tokens) == lists(plain(sampling).tokens)
        if name == "draft model" and sampling == GREEDY:  # the target drafts for itself
            assert generation.tau.min() > 1


@pytest.mark.long
def test_both_loops_learn_the_same(models, prompts, plain):
    """They verify the same trees, and tell the policy the same of them."""
    config = DecodeConfig(models.target, models.drafter, SIZES[-1])
    truth = sequences(prompts, plain(GREEDY).tokens)
    results = []
    for loop in LOOPS:
        trees = trees_of(config)
        for nodes in SIZES[1:]:
            trees[nodes] = trees[nodes]._replace(search=Oracle(trees[nodes].config, truth))
        policy = Scripted(Burst(8, 3), Burst(2, 2), Burst(0, 4), Burst(8, 2))
        switch = Switch(trees, models.params, policy)
        generation = loop(switch, models.params, prompts, Options(seed=SEED))
        results.append((generation, policy.told))
        assert lists(generation.tokens) == lists(plain(GREEDY).tokens)
        assert generation.tau.min() > 1
    (fused, told), (streaming, told_too) = results
    assert told == told_too
    assert lists(fused.ranks) == lists(streaming.ranks)
    np.testing.assert_array_equal(fused.steps, streaming.steps)
    sizes = [size for size, *_ in told]
    assert sizes[:5] == [8, 2, 0, 8, 8]
    for size, ranks, trees, steps in told:
        assert max(ranks, default=0) <= size
        assert trees <= steps * len(prompts.tokens)


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_nothing_is_compiled_for_a_pair_of_sizes(models, prompts, methods, name, loop):
    """What a tour compiles, which visits each size after plain decoding, is enough."""
    drafter, params, ngram = methods[name]
    trees = trees_of(DecodeConfig(models.target, drafter), ngram)
    for order in ((8, 0, 2, 0, 8, 0), (8, 2, 8, 0, 2, 0)):
        policy = Scripted(*(Burst(size, 1) for size in order))
        options = Options(Sampling(1.0), seed=SEED)
        generation = loop(Switch(trees, params, policy), params, prompts, options)
        assert [size for size, *_ in policy.told][: len(order)] == list(order)
    assert generation.seconds["compile"] == 0


@pytest.mark.long(ci=1)
@pytest.mark.parametrize("loop", LOOPS)
def test_reported_scores_are_plain_decodings(models, prompts, loop):
    config = DecodeConfig(models.target, PromptLookupConfig(), logits=LogitsConfig(logprobs=2))
    options = Options(seed=SEED)
    trees = trees_of(config)
    ours = loop(Switch(trees, models.params, at_random(3, False)), models.params, prompts, options)
    plain = Switch(trees, models.params, Scripted(Burst(0, None)))
    theirs = loop(plain, models.params, prompts, options)
    assert lists(ours.tokens) == lists(theirs.tokens)
    for one, other in zip(ours.scores, theirs.scores, strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), one, other)


@pytest.mark.long(ci=1)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_second_pause_lasts_to_the_end(models, prompts, loop):
    """As generations at the same time, which share a policy, may decide for one another."""
    trees = trees_of(DecodeConfig(models.target, PromptLookupConfig()))
    policy = Scripted(Burst(8, 2), Burst(0, 3), Burst(0, 3), Burst(8, 2))
    generation = loop(Switch(trees, models.params, policy), models.params, prompts, Options())
    assert [size for size, *_ in policy.told] == [8, 0, 0]
    alone = loop(
        Switch(trees, models.params, Scripted(Burst(0, None))), models.params, prompts, Options()
    )
    assert lists(generation.tokens) == lists(alone.tokens)


def test_ended_rows_stay_ended(models, prompts):
    """A row that is ended from outside emits nothing more, across changes of sizes."""
    trees = trees_of(DecodeConfig(models.target, PromptLookupConfig()))
    switch = Switch(trees, models.params, Scripted(Burst(8, 2), Burst(0, 3), Burst(2, 2)))
    steps = stream_in_bursts(switch, models.params, prompts, Options(seed=SEED))
    ended = np.arange(len(prompts.tokens)) == 1
    next(steps)
    next(steps)
    first = steps.send(ended)
    others = [first, *steps]
    assert sum(len(output.tokens[1]) for output in others) == 0
    assert len(others) > 8


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", ["dart", "eagle3", "draft model", "prompt lookup"])
def test_after_a_pause_the_drafter_has_read_everything(models, prompts, methods, name):
    """Plain decoding, then a draft: the same draft as without the pause."""
    drafter, params, _ = methods[name]
    trees = trees_of(DecodeConfig(models.target, drafter))
    config = trees[8].config
    steps, options = 5, Options(seed=SEED)

    def drafted(state, packed):
        candidates = config.host_buffer.candidates_of(np.asarray(packed))
        return [*candidates, *(np.asarray(x) for x in (state.trees,) if x is not None)]

    state, packed = start(config, params, prompts, options)
    for _ in range(steps):  # they verify only the root
        root = config.host_buffer.root
        roots = np.zeros((len(prompts.tokens), 3, config.nodes + 1), np.int32)
        roots[:, 0, 0] = np.asarray(packed)[:, root]
        state, packed = step(config, params, state, jnp.asarray(roots))
    expected = drafted(state, packed)

    switch = Switch(trees, params, Scripted(Burst(8, 0), Burst(0, steps), Burst(8, 1)))
    state, packed = start(config, params, prompts, options)
    state, packed = switch.next(state, packed)
    root, tokens, features = state.context[:, -1], [], []
    plain = switch.current.config
    for _ in range(steps):
        state, packed = step(plain, params, state, None)
        tokens.append(np.asarray(packed)[:, 1])
        features.append(np.asarray(state.features))
    padding = ((0, 0), (0, PAUSE - steps))
    tokens = np.pad(np.stack(tokens, axis=1), padding)
    features = jnp.pad(jnp.concatenate(features, axis=1), (*padding, (0, 0)))
    switch.paused(root, tokens, features, np.full(len(tokens), steps))
    state, packed = switch.next(state, packed)
    for ours, theirs in zip(drafted(state, packed), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


# What is learned


def test_what_is_accepted_often_becomes_likely():
    rates = AcceptanceRates.none(4)
    for _ in range(20):  # of 4 trees, the first node of all and the third of one
        rates.learn(np.array([1, 1, 0, 1, 1, 3, 0]), trees=4, steps=1, nodes=3)
    tokens = rates.expected()
    assert tokens[0] == 1
    np.testing.assert_allclose(np.diff(tokens)[:3], [1, 0, 0.25], atol=0.05)
    # Nothing is known of the fourth, but that few nodes are accepted.
    assert 0 < np.diff(tokens)[3] < 0.3


def test_before_the_first_step_much_is_expected():
    tokens = AcceptanceRates.none(4).expected()
    np.testing.assert_allclose(tokens, [1, 2, 2.5, 2.5 + 1 / 3, 2.75 + 1 / 3])


def test_old_evidence_fades():
    rates = AcceptanceRates.none(2)
    rates.learn(np.ones(1000, int), trees=1000, steps=1000, nodes=2)
    rates.learn(np.zeros(0, int), trees=200, steps=200, nodes=2)
    assert np.diff(rates.expected())[0] < 0.1


def test_costs_are_those_of_a_quiet_machine():
    costs = StepCosts({0: 1.0})
    assert costs.known == {0: 1.0}
    for seconds in (5.0, 2.0):
        costs.learn(8, seconds)
    assert costs.known == {0: 1.0}
    costs.learn(8, 100.0)
    assert costs.known == {0: 1.0, 8: 2.0}
    for _ in range(9):
        costs.learn(8, 3.0)
    assert costs.known == {0: 1.0, 8: 3.0}


def test_unknown_costs_are_on_a_line_through_known_ones():
    costs = StepCosts({0: 1.0, 4: 2.0, 8: 4.0}).expected((0, 2, 4, 6, 8, 16))
    assert costs == {0: 1.0, 2: 1.5, 4: 2.0, 6: 3.0, 8: 4.0, 16: 8.0}


# What is chosen


def decoded(policy, rates, costs, texts=1, tokens=400):
    """Lets a policy decode texts on a machine with these costs, where the r-th node of a tree is
    accepted in a share rates[r - 1] of the steps; returns what it ran: (size, tokens, seconds)."""
    ran = []
    for _ in range(texts):
        left, burst = tokens, policy.begin()
        while left > 0:
            size = burst.size
            tau = 1 + sum(rates[:size])
            steps = min(burst.steps or left, int(np.ceil(left / tau)))
            counts = np.round(np.multiply(rates[:size], steps)).astype(int)
            ranks = np.arange(1, size + 1).repeat(counts)
            policy.learn(size, ranks, steps, steps, steps * costs[size])
            left -= steps * tau
            ran.append((size, steps * tau, steps * costs[size]))
            burst = policy.next()
    return ran


GOOD = [0.8, 0.6, 0.5, 0.4, 0.1, 0.05, 0.05, 0.05]
BAD = [0.2, 0.1, 0.05, 0.05, 0.01, 0.01, 0.01, 0.01]
COSTS = {0: 1, 2: 1.5, 4: 1.7, 8: 2.4}


def test_the_size_that_pays_best_is_found():
    ran = decoded(Policy((0, 2, 4, 8), 8), GOOD, COSTS, texts=200)
    sizes = [size for size, *_ in ran[len(ran) // 2 :]]
    assert sizes.count(4) > 0.95 * len(sizes)
    assert set(sizes) == {2, 4, 8}  # its neighbours are tried now and then


def test_a_cost_that_was_disturbed_is_measured_again():
    """A size's first bursts were slow; without other evidence it would never be chosen."""
    disturbed = COSTS | {4: 3 * COSTS[4]}
    policy = Policy((0, 2, 4, 8), 8, StepCosts(disturbed))
    ran = decoded(policy, GOOD, COSTS, texts=200)
    assert 4 not in {size for size, *_ in ran[:20]}
    assert [size for size, *_ in ran[-100:]].count(4) > 90


def test_where_drafts_do_not_pay_little_is_lost():
    ran = decoded(Policy((0, 2, 4, 8), 8), BAD, COSTS, texts=200)
    tokens, seconds = np.array(ran)[:, 1:].sum(axis=0)
    assert tokens / seconds > 0.985
    assert 0 < sum(size > 0 for size, *_ in ran[-100:]) <= 10  # it is tried again


def test_what_begins_to_pay_is_found_again():
    policy = Policy((0, 2, 4, 8), 8)
    decoded(policy, BAD, COSTS, texts=20)
    ran = decoded(policy, GOOD, COSTS, texts=60)
    assert [size for size, *_ in ran[-20:]].count(4) >= 19


def test_a_short_text_runs_one_size():
    """So that a first text compiles no more than it would with a fixed size."""
    ran = decoded(Policy((0, 2, 4, 8), 8), GOOD, COSTS)
    assert {size for size, *_ in ran[:3]} == {8}


def test_bursts_are_short_where_costs_are_unknown():
    policy = Policy((0, 8), 8)
    assert policy.begin().steps < BURST
    for _ in range(ENOUGH):
        policy.learn(8, np.zeros(0, int), 1, 1, 1.0)
    assert policy.next() == Burst(8, BURST)


def test_times_with_compilation_teach_nothing():
    policy = Policy((0, 8), 8)
    for _ in range(10):
        policy.learn(8, np.zeros(0, int), 4, 4, None)
    assert policy.costs.known == {}


@pytest.mark.parametrize("tokens", [30, 100, 1000])
def test_a_tour_visits_every_size(tokens):
    policy, compiled = Policy((0, 2, 8), 8), set()
    policy.costs.learn(8, 100.0)
    tour, texts = Tour(policy), 0
    while not tour.done:
        left, burst, texts = tokens, tour.begin(), texts + 1
        # A text that begins with plain decoding cannot go on with drafts; the last one does.
        assert burst.size or tour.done
        while left > 0:
            size, steps = burst.size, min(burst.steps or left, left)
            seconds = steps * (1.0 + size) if size in compiled else None
            compiled.add(size)
            tour.learn(size, np.zeros(0, int), steps, steps, seconds)
            left -= steps
            before, burst = burst, tour.next()
            assert before.size or burst.size or burst.steps is None
    assert policy.costs.known == {0: 1.0, 2: 3.0, 8: 9.0}
    assert texts <= 25


def test_a_tour_of_very_short_texts_ends():
    policy = Policy((0, 8), 8)
    tour = Tour(policy)
    texts = 0
    while not tour.done:
        tour.learn(tour.begin().size, np.zeros(0, int), 1, 1, 1.0)
        tour.learn(tour.next().size, np.zeros(0, int), 1, 1, 1.0)
        texts += 1
    assert texts < 100
    assert policy.costs.known == {}


def test_what_a_tour_finds_decides_how_the_next_text_begins():
    """Drafts that do not pay are tried for one short burst, then no more for a long time."""
    policy = Policy((0, 8), 8)
    tour = Tour(policy)
    while not tour.done:
        burst = tour.begin()
        while burst.steps is not None:
            seconds = burst.steps * (1.0 + burst.size)
            tour.learn(burst.size, np.zeros(0, int), burst.steps, burst.steps, seconds)
            burst = tour.next()
    policy.decide()
    first = policy.begin()
    assert first == Burst(8, TRIAL)
    policy.learn(8, np.zeros(0, int), TRIAL, TRIAL, 9.0 * TRIAL)
    assert policy.next() == policy.begin() == Burst(0, None)


@pytest.mark.long
def test_what_is_prepared_knows_all_costs():
    decoder = DartModel.demo().decoder(nodes=2, max_length=128, sizes=(0, 2))
    decoder = dataclasses.replace(decoder, memory=TreeMemory())
    prompt = [np.array([5, 6, 7])]
    decoder.prepare(prompt, 100)
    padded = decoder.pad(prompt, 100)
    _, policy = decoder._policy(padded, decoder.options(0), fused=True)
    assert list(policy.costs.known) == [0, 2]


# What is kept


def test_costs_are_kept_between_processes(tmp_path):
    memory = TreeMemory(tmp_path)
    policy = memory.policy("program", "greedy", (0, 2), 2)
    assert memory.policy("program", "greedy", (0, 2), 2) is policy
    assert memory.policy("program", "sampled", (0, 2), 2) is not policy
    memory.keep("program", policy)
    assert not list(tmp_path.iterdir())  # nothing is known yet
    for size, seconds in ((0, 1.0), (2, 1.5)):
        for _ in range(ENOUGH):
            policy.costs.learn(size, seconds)
    memory.keep("program", policy)
    assert TreeMemory(tmp_path).policy("program", "any", (0, 2), 2).costs.known == {0: 1.0, 2: 1.5}
    assert TreeMemory(tmp_path).policy("another", "any", (0, 2), 2).costs.known == {}
    assert TreeMemory().policy("program", "any", (0, 2), 2).costs.known == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"0": -1}', '{"0": NaN}', "null"])
def test_damaged_costs_are_learned_again(tmp_path, text):
    memory = TreeMemory(tmp_path)
    policy = memory.policy("program", "greedy", (0, 2), 2)
    for _ in range(ENOUGH):
        policy.costs.learn(2, 1.0)
    memory.keep("program", policy)
    [file] = tmp_path.glob("*.json")
    assert json.loads(file.read_text()) == {"2": 1.0}
    file.write_text(text)
    assert TreeMemory(tmp_path).policy("program", "greedy", (0, 2), 2).costs.known == {}


# For users


@pytest.mark.long
def test_generation_gives_the_same_text_with_any_trees():
    model = DartModel.demo()
    prompt = "def mean(values):\n"
    plain = model.generate(prompt, max_new_tokens=48, tree_nodes=0)
    fixed = model.generate(prompt, max_new_tokens=48, tree_nodes=8)
    by_default = model.generate(prompt, max_new_tokens=48)
    assert by_default.text == fixed.text == plain.text
    assert "".join(model.stream(prompt, max_new_tokens=48)) == plain.text


@pytest.mark.parametrize("sizes", [(1, 8), (0, 4), (0, 8, 4), (0, 4, 4, 8), (0,)])
def test_sizes_out_of_order(sizes):
    with pytest.raises(UserError, match="must ascend from 0 and include 8 nodes"):
        DartModel.demo().decoder(nodes=8, max_length=128, sizes=sizes)


@pytest.mark.parametrize("batch", [1, 64])
def test_sizes_to_choose_from(models, batch):
    for drafter in (None, models.eagle, models.target, PromptLookupConfig(), NgramConfig()):
        sizes, _ = adaptive_tree(drafter, batch)
        assert sizes[0] == 0
        assert list(sizes) == sorted(set(sizes))
        assert default_tree(drafter, batch)[0] in sizes[1:]
