"""Long prompts are read in chunks; the texts are those of prompts read at once."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import Options, Prompts, begin, generate
from tiny_configs import ALL, DART, EAGLE3, TARGET, VOCABULARY, random_params

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.logits import LogitsConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.decoder import Decoder
from dart_jax.engine.programs import read_chunk
from dart_jax.errors import UserError
from dart_jax.ngram import NgramModel

WINDOWS = dataclasses.replace(TARGET, sliding_window=5, sliding_layers=(0, 1, 3, 4, 6))
DRAFTERS = {
    "dart of two layers": dataclasses.replace(DART, num_hidden_layers=2),
    "eagle3": EAGLE3,
    "sps": dataclasses.replace(TARGET, num_hidden_layers=2),
    "pld": PromptLookupConfig(),
    "dart": DART,
    "ngram": NgramConfig(),
    "plain": None,
}
NODES, MAX_LENGTH, CHUNK = 6, 64, 512
LENGTHS = (40, 33, 17, 3, 1)  # of chunks of 16, one ends with a chunk


def prompts_of(lengths, chunk=CHUNK, max_length=MAX_LENGTH, new=12):
    """Random prompts that repeat themselves, for the methods that look for repeats."""
    rows = [np.random.default_rng(n).integers(0, VOCABULARY, n) % 7 for n in lengths]
    return Prompts.pad(rows, new, max_length, chunk=chunk)


def setting(name, target=TARGET, **options):
    """The config of a method, random parameters, and its search."""
    drafter = DRAFTERS[name]
    config = DecodeConfig(target, drafter, 0 if drafter is None else NODES, **options)
    params = {"target": random_params(target, 0), "draft_ids": jnp.asarray(ALL)}
    if name not in ("plain", "pld", "ngram"):
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


def test_a_chunk_has_tokens():
    config, params, _ = setting("plain")
    decoder = Decoder(config, params, None, 64, Sampling(), (), chunk=0)
    with pytest.raises(UserError, match="chunks of at least 1 token, got 0"):
        decoder.start([np.ones(3, int)], 4)
