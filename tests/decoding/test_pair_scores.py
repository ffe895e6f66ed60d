"""Decoding with a drafter that scores pairs of candidates: the same tokens, and the formula's
trees."""

import contextlib
import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import RANK, SEED
from decoding import Options, stream
from literal_search import check_tree
from tiny_configs import DART, random_params

from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.networks.dart import DartDrafter
from dart_jax.models.networks.pure import bind

EOS = (511,)
GREEDY, FILTERED = Sampling(), Sampling(0.8, top_k=20, top_p=0.9)
STEPS = 3


def with_pairs(params, **changes):
    """The parameters with other pair scores."""
    drafter = params["drafter"]
    return {**params, "drafter": {**drafter, "pairs": {**drafter["pairs"], **changes}}}


def test_tables_hold_the_scores_of_the_candidates():
    config = dataclasses.replace(DART, pair_rank=RANK)
    drafter = bind(config, random_params(config, 0))
    assert isinstance(drafter, DartDrafter)
    rng = np.random.default_rng(1)
    normed = jnp.asarray(rng.normal(size=(2, 4, config.hidden_size)), jnp.float32)
    ids = jnp.asarray(rng.integers(0, config.draft_vocab_size, (2, 4, 5)), jnp.int32)
    tables = drafter.pairs.tables(normed, ids, ids)
    assert tables.shape == (2, 3, 5, 5)
    for level in range(1, 4):
        for a in range(5):
            factors = drafter.pairs.factors(normed[:, level], ids[:, level - 1, a])
            every = drafter.pairs.all_next(factors)
            expected = jnp.take_along_axis(every, ids[:, level], axis=1)
            np.testing.assert_allclose(tables[:, level - 1, a], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(tables).max() > 0.1


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("sampling", [GREEDY, FILTERED])
@pytest.mark.parametrize("coupled", [True, False])
def test_scores_are_divided_as_the_logits_are(models, scored, prompts, sampling, coupled):
    """Without a gate they are known from the candidates alone."""
    drafter, params = scored
    kernel = params["drafter"]["pairs"]["gate"]["kernel"]
    params = with_pairs(params, gate={"kernel": jnp.zeros_like(kernel)})
    config = DecodeConfig(models.target, drafter, nodes=20, coupled=coupled)
    search = HostSearch(config.host_buffer, 20)
    bursts = stream(config, params, search, prompts, Options(sampling, seed=SEED), drafts=True)
    _, second = itertools.islice(bursts, 2)
    drafts = [new.draft for new in second.values() if new.draft is not None]
    ids, logits, pairs = (np.stack([draft[place] for draft in drafts]) for place in (2, 3, 4))
    draft_ids = np.asarray(params["draft_ids"])
    draft_id = np.zeros(models.target.vocab_size, int)
    draft_id[draft_ids] = np.arange(len(draft_ids))
    prev, following = (np.asarray(params["drafter"]["pairs"][x]) for x in ("prev", "next"))
    expected = np.einsum(
        "blar,blcr->blac", prev[draft_id[ids[:, :-1]]], following[draft_id[ids[:, 1:]]]
    )
    divided = coupled and sampling is FILTERED
    if divided:
        expected /= sampling.temperature
        assert np.isinf(logits).any()  # left out by the filters
    assert pairs.shape[1:] == (drafter.num_positions - 1, 25, 25)
    np.testing.assert_allclose(pairs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(("sampling", "nodes"), [(GREEDY, 3), (GREEDY, 20), (FILTERED, 8)])
def test_trees_are_those_of_the_formula(models, scored, prompts, sampling, nodes):
    """From the same candidates, step by step; pair scores change some of the trees."""
    drafter, params = scored
    config = DecodeConfig(models.target, drafter, nodes=nodes)
    search = HostSearch(config.host_buffer, nodes, ngram=models.ngram, eos=EOS)
    assert config.max_depth == min(nodes, drafter.num_positions)
    bursts = stream(config, params, search, prompts, Options(sampling, seed=SEED), drafts=True)
    changed = 0
    for new in itertools.islice(bursts, 1, STEPS + 1):
        for draft in (each.draft for each in new.values() if each.draft is not None):
            row = draft.context, draft.ids, draft.logits
            check_tree(draft.tree, models.ngram, *row, draft.pairs, nodes=nodes, eos=EOS)
            with contextlib.suppress(AssertionError):
                check_tree(draft.tree, models.ngram, *row, nodes=nodes, eos=EOS)
                continue
            changed += 1
    assert changed
