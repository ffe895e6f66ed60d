"""Long prompts are read in chunks; the texts are those of prompts read at once."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import Options, Prompts, begin, generate, start
from hypothesis import given
from hypothesis import strategies as st
from needs import native
from tiny_configs import ALL, BLOCK, DART, EAGLE3, TARGET, VOCABULARY, random_params

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.options import LogitsConfig, Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.step import Verified, accept_and_compact, draft, draft_input, verify
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.programs import read_chunk
from dart_jax.engine.shapes import _CHUNK_ROWS, shapes_of
from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.segments import Prefix, Segment
from dart_jax.models.cpu import only_rows
from dart_jax.ngram import NgramModel

WINDOWS = dataclasses.replace(TARGET, sliding_window=5, sliding_layers=(0, 1, 3, 4, 6))
DRAFTERS = {
    "dart with a window": DART.with_window(7),
    "eagle3": EAGLE3,
    "eagle3 with a window": EAGLE3.with_window(7),
    "sps": dataclasses.replace(TARGET, num_hidden_layers=2),
    "pld": PromptLookupConfig(),
    "dart": DART,
    "block": BLOCK,
    "ngram": NgramConfig(),
    "plain": None,
    "text": None,
    "text, dart": DART,
}
NODES, MAX_LENGTH, CHUNK = 6, 64, 512
LENGTHS = (40, 33, 17, 3, 1)  # of chunks of 16, one ends with a chunk


def prompts_of(lengths, chunk=CHUNK, max_length=MAX_LENGTH, new=12):
    """Random prompts that repeat themselves, for the methods that look for repeats."""
    rows = [np.random.default_rng(n).integers(0, VOCABULARY, n) % 7 for n in lengths]
    return Prompts.pad(rows, new, max_length, chunk=chunk)


def setting(name, target=TARGET, **options):
    """The config of a method, random parameters, and its search."""
    drafter, text = DRAFTERS[name], name.startswith("text")
    nodes = NODES if text or drafter is not None else 0
    config = DecodeConfig(target, drafter, nodes, text=text, **options)
    params = {"target": random_params(target, 0), "draft_ids": jnp.asarray(ALL)}
    if name not in ("plain", "pld", "ngram", "text"):
        params["drafter"] = random_params(drafter, 1)
    search = None
    if config.searches:
        ngram = NgramModel.count([np.arange(9) % 7])
        search = HostSearch(config.host_buffer, NODES, ngram=ngram)
    return config, params, search


def lists(rows):
    return [row.tolist() for row in rows]


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("target", [WINDOWS, TARGET], ids=["windows", "full"])
@pytest.mark.parametrize("together", [False, True])
def test_texts_and_drafts_are_those_of_whole_prompts(name, target, together, monkeypatch):
    """Drafts depend on all rows of the drafter's cache."""
    if together:  # as on accelerators: several prompts at a time
        monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    config, params, search = setting(name, target)
    ours, theirs = (
        generate(config, params, search, prompts_of(LENGTHS, chunk)) for chunk in (16, CHUNK)
    )
    assert lists(ours.tokens) == lists(theirs.tokens)
    assert lists(ours.ranks) == lists(theirs.ranks)


def follow(tokens, logits, length):
    """A logits processor that reads the whole text: seen tokens become more likely."""
    at = jnp.where(tokens < 0, VOCABULARY, tokens)
    return logits.at[at].add(1 / length.astype(jnp.float32), mode="drop")


@pytest.mark.long
def test_chunks_with_all_that_reads_the_prompt():
    """Penalty, processors and scores see the whole prompt."""
    logits = LogitsConfig((follow,), logprobs=3, scores=True)
    config, params, search = setting("dart", logits=logits)
    options = Options(Sampling(0.9, top_k=30, repetition_penalty=1.3), seed=5)
    ours, theirs = (
        generate(config, params, search, prompts_of(LENGTHS, chunk), options)
        for chunk in (16, CHUNK)
    )
    assert lists(ours.tokens) == lists(theirs.tokens)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, ours.scores, theirs.scores)


@pytest.mark.long
def test_programs_do_not_depend_on_the_length():
    config, params, search = setting("dart")

    def programs(lengths):
        for length in lengths:
            begin(config, params, search, prompts_of([length], max_length=3100)).burst(1)
        return read_chunk._cache_size()

    programs([17, 33, 65, 129, 257, 513])
    before = programs([1000, 2500])  # a chunk after others
    assert programs([20, 700, 2000, 3000]) == before


@native
@pytest.mark.long(keep=1)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_p=0.9, repetition_penalty=1.2)])
@pytest.mark.parametrize("name", ["dart", "eagle3", "block"])
def test_slots_without_a_node_are_not_read(name, sampling):
    """Whatever a single sequence's verification leaves in them, the accepted path, the caches and
    the next drafts are the same."""
    config, params, _ = setting(name)
    assert config.reads_only_used
    some = Prompts.pad([np.arange(20) % 7], [30], 64)
    state, _ = start(config, params, some, Options(sampling))
    chain = jnp.array([[3, 4, 5, 6], [0, 0, 1, 2], [0, 1, 2, 3]], jnp.int32)[None]
    chain = chain.at[:, 0, 0].set(state.context[:, -1])
    used = chain.shape[2]
    trees = jnp.pad(chain, ((0, 0), (0, 0), (0, NODES + 1 - used)))

    def spoilt(tree, axis):
        def spoil(x):
            kept = jnp.arange(x.shape[axis]) < used
            return jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1 - axis)), x, jnp.nan)

        return jax.tree.map(spoil, tree)

    @jax.jit
    def after(verified):
        new, path = accept_and_compact(config, state, trees, verified)
        drafted, candidates = draft(config, new, draft_input(config, params, new, path))
        rows = jnp.arange(new.target_cache[0][0].shape[2]) < new.length[0]
        cache = jax.tree.map(lambda x: jnp.where(rows[:, None], x, 0), new.target_cache)
        place = jnp.arange(path.tokens.shape[1]) < path.count[0]
        emitted = jnp.where(place, path.next_tokens, -1)
        return emitted, path.count, new.length, cache, drafted.trees, candidates

    verified = jax.jit(partial(verify, config))(params, state, trees)
    other = Verified(*(spoilt(x, axis) for x, axis in zip(verified, (1, 1, 2), strict=True)))
    assert all(np.isnan(x).any() for x in jax.tree.leaves(other))
    jax.tree.map(np.testing.assert_array_equal, after(other), after(verified))


def test_rows_that_are_not_used_may_be_nan():
    """In plain JAX too, which attends where heads do not fit the C++ core."""
    q, k, v = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 2, 6, 8)), jnp.float32)
    q, k, v = (x.at[:, :, 4:].set(jnp.nan) for x in (q, k, v))
    mask = jnp.tril(jnp.ones((1, 6, 6), bool))
    prefix = Prefix(k[:, :, :2], v[:, :, :2], jnp.ones(1, jnp.int32))
    with only_rows(jnp.int32(4)):
        ours = attend([Segment(q, k, v, mask)], prefix, kernel="native")
    q, k, v = (x[:, :, :4] for x in (q, k, v))
    theirs = attend([Segment(q, k, v, mask[:, :4, :4])], prefix, kernel="native")
    np.testing.assert_allclose(ours[:, :4], theirs, rtol=1e-6)


SHAPES = shapes_of(setting("plain")[0], EngineConfig(slots=1, max_length=64, offline=True))


@given(st.sampled_from([(8, 32, 128), (16, 32, 64, 128), (5,), (1, 100)]), st.integers(1, 400))
def test_prompts_are_cut_so_that_they_are_read_the_soonest(chunks, tokens):
    shapes = dataclasses.replace(SHAPES, chunks=chunks)
    least = [0]
    for n in range(1, tokens + 1):
        least.append(min(_CHUNK_ROWS + c + least[max(n - c, 0)] for c in chunks))
    cost, left = 0, tokens
    while left > 0:
        chunk = shapes.chunk_for(left)
        cost, left = cost + _CHUNK_ROWS + chunk, left - chunk
    assert cost == least[tokens]
