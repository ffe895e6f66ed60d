"""Decoding with a drafter that scores pairs of candidates: the same tokens, and the formula's
trees."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import RANK, SEED
from decoding import Options, stream
from literal_search import check_tree
from tiny_configs import DART, random_params

from dart_jax.decoding.options import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.networks.dart import DartDrafter
from dart_jax.models.networks.pure import bind

EOS = (511,)


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


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("nodes", [3, 20])
@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=20, top_p=0.9)])
def test_trees_are_those_of_the_formula(models, scored, prompts, sampling, coupled, nodes):
    """From candidates and pair scores, which are divided as the logits are."""
    drafter, params = scored
    config = DecodeConfig(models.target, drafter, nodes=nodes, coupled=coupled)
    search = HostSearch(config.host_buffer, nodes, ngram=models.ngram, eos=EOS)
    pairs = params["drafter"]["pairs"]
    gate = {"kernel": jnp.zeros_like(pairs["gate"]["kernel"])}  # known from candidates alone
    params = {**params, "drafter": {**params["drafter"], "pairs": {**pairs, "gate": gate}}}
    bursts = stream(config, params, search, prompts, Options(sampling, seed=SEED), drafts=True)
    draft_ids = np.asarray(params["draft_ids"])
    prev, following = (np.asarray(pairs[x]) for x in ("prev", "next"))
    temperature = (coupled and sampling.temperature) or 1
    for new in itertools.islice(bursts, 1, 4):
        for draft in (each.draft for each in new.values() if each.draft is not None):
            row = draft.context, draft.ids, draft.logits
            check_tree(draft.tree, models.ngram, *row, draft.pairs, nodes=nodes, eos=EOS)
            index = np.searchsorted(draft_ids, draft.ids)
            expected = np.einsum("lar,lcr->lac", prev[index[:-1]], following[index[1:]])
            np.testing.assert_allclose(draft.pairs, expected / temperature, rtol=1e-4, atol=1e-4)
