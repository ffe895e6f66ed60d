"""Losslessness: every method emits the tokens of plain decoding, in bursts of any length and with
trees of any size."""

import dataclasses
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED, Oracle, sequences
from decoding import Options, begin, generate, generate_stepwise, stream

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.paying import Paying
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.programs import burst, read_chunk
from dart_jax.engine.tree_size import PAUSES, State, TreeSizes
from dart_jax.models.networks.pure import init_params
from dart_jax.ngram import NgramModel

GREEDY, SAMPLED, NUCLEUS = Sampling(), Sampling(1.0), Sampling(0.8, top_k=20, top_p=0.9)
PENALIZED = Sampling(0.7, min_p=0.05, repetition_penalty=1.3)
SAMPLINGS = {"greedy": GREEDY, "1.0": SAMPLED, "filtered": NUCLEUS, "penalized": PENALIZED}
BURSTS = [generate_stepwise, generate]
SIZES = (0, 3, 8)
# Methods, the nodes of their trees, and the acceptance length that each reaches at least: where
# the truth is proposed among other nodes, where n-grams are those of the text, and where the
# target drafts for itself.
METHODS = {
    "oracle": (60, 2),
    "dart": (60, 1),
    "dart with pair scores": (60, 1),
    "dflash": (8, 1),
    "jetspec": (20, 1),
    "dspark": (60, 1),
    "dflash2": (60, 1),
    "eagle3": (59, 1),
    "eagle3 of other layers": (8, 1),
    "target": (8, 7),
    "small draft model": (8, 1),
    "target of fewer tokens": (8, 1),
    "target of more tokens": (8, 7),
    "prompt lookup": (8, 1),
    "n-gram": (20, 2),
    "the text": (20, 1),
    "dart and the text": (60, 1),
    "eagle3 and the text": (30, 1),
    "n-gram and the text": (20, 2),
}
# The oracle makes trees of one size; of draft models, a small one stands for all.
ONE_SIZE = {"oracle", "target", "target of fewer tokens", "target of more tokens"}
CASES = [(name, "one size") for name in METHODS]
CASES += [(name, "changing") for name in METHODS if name not in ONE_SIZE]


def lists(tokens):
    return [row.tolist() for row in tokens]


@pytest.fixture(scope="module")
def truth(prompts, plain):
    """Prompts and their continuation by plain decoding."""
    return lambda sampling: sequences(prompts, plain(sampling).tokens)


@pytest.fixture(scope="module")
def setting(models, scored, blocks, truth):
    """The config of a method, its parameters and its search."""
    target, own = models.target, models.params["target"]

    def of(name, sampling=GREEDY, nodes=SIZES[-1]):
        drafter, params = models.drafter, models.params
        text = name.endswith("the text")
        match name.removesuffix(" and the text"):
            case "dart with pair scores":
                drafter, params = scored
            case "dflash" | "jetspec" | "dspark" | "dflash2":
                drafter, params = blocks(name)
            case "eagle3":
                drafter, params = models.eagle, models.eagle_params
            case "eagle3 of other layers":
                drafter = dataclasses.replace(models.eagle, feature_layers=(0, 1, 3, 6))
                params = {**models.eagle_params, "drafter": init_params(drafter, 0)}
            case "target":
                drafter, params = target, {"target": own, "drafter": own}
            case "small draft model":
                drafter = dataclasses.replace(target, num_hidden_layers=1)
                params = {"target": own, "drafter": init_params(drafter, 0)}
            case "target of fewer tokens" | "target of more tokens":
                size = 200 if "fewer" in name else 520
                drafter = dataclasses.replace(target, vocab_size=size)
                params = {"target": own, "drafter": with_vocabulary(own, size)}
            case "prompt lookup":
                drafter = PromptLookupConfig()
            case "n-gram":
                drafter = NgramConfig()
            case "the text":
                drafter = None
        config = DecodeConfig(target, drafter, nodes=nodes, text=text)
        if name == "oracle":
            return config, params, Oracle(config, truth(sampling))
        ngram = NgramModel.count(truth(sampling))
        search = HostSearch(config.host_buffer, nodes, ngram=ngram) if config.searches else None
        return config, params, search

    return of


def with_vocabulary(params, size):
    """A target's weights with fewer tokens, or with more, which would be the likeliest."""
    beyond = max(size - len(params["embed_tokens"]), 0)
    table = jnp.pad(params["embed_tokens"][:size], ((0, beyond), (0, 0)))
    head = params["lm_head"]["kernel"][:, :size]
    more = head[:, : beyond // 2]
    head = jnp.concatenate([head, 100 * more, -100 * more], axis=1)
    return {**params, "embed_tokens": table, "lm_head": {"kernel": head}}


class Scripted(TreeSizes):
    """Takes bursts of random sizes and lengths, in which steps verify random numbers of nodes."""

    def __init__(self, sizes, seed):
        super().__init__(sizes)
        self._rng, self._state = np.random.default_rng(seed), State(0, 0)

    def choose(self, rows, mode):
        if self._state.left <= 0:
            size = int(self._rng.choice(self.sizes[rows]))
            rest = size == 0 and self._rng.random() < 0.2  # the drafter does not follow
            paying = Paying.all(size)
            numbers = self._rng.integers(-1, size + 1, len(paying.numbers)).astype(np.int32)
            steps = PAUSES[1] if rest else int(self._rng.integers(1, 6))
            self._state = State(size, steps, paying._replace(numbers=numbers))
        return self._state

    def drafts(self, rows, mode):
        return True

    def learn(self, rows, mode, size, steps, lessons, seconds, times=None):
        self._state = self._state._replace(left=self._state.left - steps)
        if self._state.left > 10 and self._rng.random() < 0.2:  # drafts are tried again
            self._state = self._state._replace(left=0)


class After(Scripted):
    """Takes the largest trees after so many plain steps."""

    def __init__(self, sizes, plain_steps):
        super().__init__(sizes, 0)
        self._state = State(0, plain_steps)

    def choose(self, rows, mode):
        if self._state.left <= 0:
            self._state = State(SIZES[-1], 99)
        return self._state


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_plain_decoding(models, prompts, plain, sampling):
    """Until the cache is full, in bursts of one step or of many."""
    config = DecodeConfig(models.target)
    bursts = generate(config, models.params, None, prompts, Options(sampling, seed=SEED))
    assert lists(bursts.tokens) == lists(plain(sampling).tokens)
    for generation in (bursts, plain(sampling)):
        assert [len(tokens) for tokens in generation.tokens] == [47, 54, 50, 49]
        np.testing.assert_array_equal(generation.steps, prompts.max_new_tokens - 1)
        np.testing.assert_array_equal(generation.tau, np.ones(4))
        assert not any(drafted.any() for drafted in generation.drafted)


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_every_method_is_plain_decoding(prompts, plain, setting, name, sizes, sampling):
    """Greedy and sampled, in bursts of one step or of many; these also take the same steps."""
    options, expected = Options(sampling, seed=SEED), lists(plain(sampling).tokens)
    if sizes == "changing":
        parts = setting(name, sampling)
        for seed in (1, 2):
            policy = partial(Scripted, seed=seed)
            generation = generate(*parts, prompts, options, sizes=SIZES, policy=policy)
            assert lists(generation.tokens) == expected
        return
    nodes, tau = METHODS[name]
    parts = setting(name, sampling, nodes)
    one, many = (decode(*parts, prompts, options) for decode in BURSTS)
    assert lists(one.tokens) == lists(many.tokens) == expected
    if parts[0].text:
        return  # how far texts are trusted is learned after each burst
    assert lists(one.ranks) == lists(many.ranks)
    np.testing.assert_array_equal(one.steps, many.steps)
    assert one.tau.min() >= tau
    if name == "eagle3":
        assert any(drafted.any() for drafted in one.drafted)
    if name == "target of fewer tokens":
        assert any(token >= 200 for row in expected for token in row)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", ["eagle3", "dart", "dspark"])
def test_the_drafter_follows_plain_decoding(prompts, setting, name):
    """After plain steps its drafts are those of a text in which it took part all along."""
    trees = []
    for plain_steps in (0, 6):
        batch = begin(
            *setting(name), prompts, Options(seed=SEED), sizes=SIZES, drafts=True,
            policy=partial(After, plain_steps=plain_steps),
        )  # fmt: skip
        drafts = {}
        for new in batch:
            for row, output in new.items():
                if output.draft is not None:
                    place = sum(len(part.tokens) for part in batch.parts[row][:-1])
                    drafts[row, place] = output.draft.tree[0].tolist()
        trees.append(drafts)
    common = trees[0].keys() & trees[1].keys()
    assert len(common) > 8
    assert all(trees[0][key] == trees[1][key] for key in common)


def oracle(models, truth, levels):
    """A config of 8 nodes, the parameters, and trees with so many true levels."""
    config = DecodeConfig(models.target, models.drafter, nodes=8)
    return config, models.params, Oracle(config, truth(GREEDY), levels)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("loop", BURSTS)
def test_every_step_ends_on_a_token_of_the_target(models, prompts, plain, truth, loop):
    """On a path with 3 true levels, 3 tokens are drafted and the 4th is the bonus token; budgets
    may end within a path."""
    budget = np.array([9, 8, 5, 1], np.int32)
    prompts = dataclasses.replace(prompts, max_new_tokens=budget)
    generation = loop(*oracle(models, truth, 3), prompts, Options(seed=SEED))
    pattern = [False, *[True, True, True, False] * 2]
    assert lists(generation.drafted) == [pattern[:n] for n in budget]
    rows = zip(plain(GREEDY).tokens, budget, strict=True)
    assert lists(generation.tokens) == [tokens[:n].tolist() for tokens, n in rows]
    np.testing.assert_array_equal(generation.steps, [2, 2, 1, 0])
    assert np.isnan(generation.tau[3])


@pytest.mark.long
def test_option_values_do_not_recompile(models, prompts):
    """Other temperatures, filters, penalties, seeds and stop ids run the same program."""
    config = DecodeConfig(models.target)
    counts = []
    for options in (
        Options(Sampling(0.5, 10, 0.9, 0.1, 1.1), stop=(1, 2), seed=1),
        Options(Sampling(1.5, 77, 0.4, 0.3, 0.9), stop=(5,), seed=2),
    ):
        generate(config, models.params, None, prompts, options)
        counts.append((burst._cache_size(), read_chunk._cache_size()))
    assert counts[0] == counts[1]


def test_stop_ids(models, prompts, plain, truth):
    """Row 0 ends inside an accepted path and row 1 in its prefill, as in plain decoding."""
    rows = lists(plain(GREEDY).tokens)
    row, other, *_ = rows
    # If trees contain only the true path, the prefill emits one token and every step nine.
    inside = next(t for i, t in enumerate(row) if row.index(t) == i > 9 and i % 9 not in (0, 1))
    options = Options(stop=(inside, other[0]))
    cut = [
        row[: next((i + 1 for i, token in enumerate(row) if token in options.stop), len(row))]
        for row in rows
    ]
    undrafted = DecodeConfig(models.target), models.params, None
    assert lists(generate(*undrafted, prompts, options).tokens) == cut
    parts = oracle(models, truth, 8)
    generation = generate(*parts, prompts, options)
    assert lists(generation.tokens) == cut
    assert generation.steps[1] == 0
    # All tokens of a path that is cut were drafted.
    assert generation.drafted[0][-1]
    sizes = [len(new[0].tokens) for new in stream(*parts, prompts, options) if 0 in new]
    assert sizes[:-1] == [1] + [9] * (len(sizes) - 2)
    assert 1 < sizes[-1] < 9
    assert sum(sizes) == len(cut[0]) < prompts.max_new_tokens[0]
