"""The tree search on the device gives the C++ search's trees, up to ties."""

import contextlib
import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_search import TooManyTiesError, check_tree

from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.ngram import NgramModel
from dart_jax.ngram.device_table import device_table, table_bytes
from tests.decoding.test_tree_search import EOS, VOCAB, draw_drafts, model_of, ngram_model

ROWS = 64

# As users compile; the other tests do without optimisation (conftest.py).
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The shapes and options that a search is compiled for."""

    order: int | None = 3
    levels: int = 5
    candidates: int = 7
    nodes: int = 24
    eos: tuple[int, ...] = EOS
    pairs: bool = False
    search: SearchConfig = SearchConfig()

    @property
    def buffer(self):
        return HostBuffer(self.levels, self.candidates, pairs=self.pairs)


SETTINGS = [
    Setting(),
    Setting(order=None, levels=8, candidates=25, nodes=512, eos=tuple(range(0, VOCAB, 2))),
    Setting(order=1, levels=3, candidates=1, nodes=6),
    Setting(order=4, levels=2, candidates=11, nodes=600, eos=tuple(range(VOCAB))),
    Setting(order=3, levels=8, candidates=25, nodes=60, eos=()),
    Setting(order=3, levels=1, candidates=25, nodes=10),
    Setting(order=3, levels=3, candidates=5, nodes=0),
    Setting(order=4, search=SearchConfig(beam=1, ngram_weight=0.0), nodes=1, eos=(3,)),
    Setting(order=3, search=SearchConfig(7, 0.0, 0.0, 3.0), nodes=40),
    Setting(order=5, search=SearchConfig(25, 2.5, 0.5, 30.0), levels=7, candidates=31, nodes=70),
    Setting(order=2, search=SearchConfig(13, 0.5, 1.0, 1.0), levels=6, candidates=19, eos=(99,)),
    Setting(order=None, pairs=True, levels=8, candidates=25, nodes=60),
    Setting(order=4, pairs=True, levels=6, candidates=13, nodes=40, search=SearchConfig(beam=5)),
    Setting(order=5, pairs=True, levels=4, candidates=3, nodes=30, eos=(0, 1, 2)),
]


def pack(buffer, context, tokens, logits, pairs=None):
    """The host buffer of drafts; contexts are filled up with -1 on the left."""
    rows = len(context)
    context = np.pad(context, ((0, 0), (CONTEXT, 0)), constant_values=-1)[:, -CONTEXT:]
    parts = [context, tokens.reshape(rows, -1)]
    parts += [x.view(np.int32).reshape(rows, -1) for x in (logits, pairs) if x is not None]
    return np.concatenate(parts, axis=1).astype(np.int32)


def random_drafts(setting, seed, rows=ROWS):
    """Drafts of all kinds: ties, duplicates, and rows and numbers that are out of use."""
    rng = np.random.default_rng(seed)
    step, repeat = rng.choice([0.0, 1.0]), rng.choice([0.0, 0.3])
    shape = {"levels": setting.levels, "candidates": setting.candidates, "rows": rows}
    context, tokens, logits = draw_drafts(
        seed,
        **shape,
        step=step,
        context=int(rng.integers(1, CONTEXT + 1)),
        vocab=VOCAB,
        repeat=repeat,
    )
    tokens[rng.random(tokens.shape) < 0.1] = VOCAB - 1 + rng.integers(3)  # some beyond the model's
    odd = rng.random(logits.shape) < rng.choice([0.0, 0.1, 0.8])
    logits[odd] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38], odd.sum())
    tokens[rng.random(tokens.shape) < rng.choice([0.0, 0.1])] = -1
    context[rng.random(rows) < 0.05, -1] = -1
    pairs = None
    if setting.pairs:
        pairs = rng.normal(0, 2, (rows, *setting.buffer.pairs_shape))
        pairs = (np.round(pairs / step) * step if step else pairs).astype(np.float32)
        odd = rng.random(pairs.shape) < 0.05
        pairs[odd] = rng.choice([np.nan, np.inf, -np.inf, 3e38, -3e38], odd.sum())
    return pack(setting.buffer, context, tokens, logits, pairs)


@cache
def table_of(order):
    if order is None:
        return None
    return jax.tree.map(jnp.asarray, device_table(ngram_model(order))[0])


def searches(setting):
    """The search in C++ and on the device."""
    buffer, nodes = setting.buffer, setting.nodes
    options = {"eos": setting.eos, "search": setting.search}
    return (
        HostSearch(buffer, nodes, ngram=model_of(setting.order), **options),
        DeviceSearch(buffer, nodes, table=table_of(setting.order), **options),
    )


def check(setting, packed):
    """Compares the trees of both searches; returns how many nodes they have."""
    in_cpp, on_device = searches(setting)
    return check_same(setting, packed, in_cpp(packed), np.asarray(on_device(packed)))


def check_same(setting, packed, expected, trees):
    """Compares trees; those that differ by more than rounding must both be right."""
    equal = (trees[:, :3] == expected[:, :3]).all(axis=(1, 2))
    scores = [each[equal][:, 3].view(np.float32) for each in (trees, expected)]
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=2e-6 * (1 + setting.search.ngram_weight))
    buffer, options = setting.buffer, dataclasses.asdict(setting.search)
    parts = buffer.candidates_of(packed), buffer.pairs_of(packed)
    for row in np.flatnonzero(~equal):
        drafts = [part[row] for part in parts[0]]
        pairs = parts[1][row] if setting.pairs else None
        with contextlib.suppress(TooManyTiesError):
            for tree in (trees[row], expected[row]):
                options |= {"nodes": setting.nodes, "eos": setting.eos}
                check_tree(tree, model_of(setting.order), *drafts, pairs, **options)
    return np.count_nonzero(expected[:, 2])


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("setting", SETTINGS, ids=range(len(SETTINGS)))
def test_trees_are_those_of_the_search_in_cpp(setting):
    @settings(max_examples=8, deadline=None)
    @given(st.integers(0, 2**32 - 1))
    def run(seed):
        check(setting, random_drafts(setting, seed))

    run()


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("number", [4, 12])
def test_optimised_programs(number):
    setting = SETTINGS[number]
    in_cpp, on_device = searches(setting)
    search = jax.jit(DeviceSearch.in_program, compiler_options=OPTIMISED)
    for seed in range(4):
        packed = random_drafts(setting, seed)
        check_same(setting, packed, in_cpp(packed), np.asarray(search(on_device, packed)))


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("least", [1, 3, 10**9])
def test_a_smaller_table_is_a_smaller_model(least, tmp_path):
    """The least frequent n-grams do not fit: the trees are those of a model without them."""
    model = ngram_model(4)
    counts = np.concatenate([level.count for level in model.levels[1:]])
    number = int((counts >= least).sum())
    table, size = device_table(model, int((number + 0.5) * table_bytes(10**6) / 10**6))
    assert (size.ngrams, size.total) == (number, len(counts))
    assert size.least == (counts[counts >= least].min() if number else 0)
    assert size.nbytes == pytest.approx(table_bytes(number), rel=0.01, abs=300)
    model.lossy(tmp_path / "smaller.dng", min_counts=[1, least, least, least])
    smaller = NgramModel.load(tmp_path / "smaller.dng")
    setting = Setting(order=4, levels=5, candidates=9)
    packed = random_drafts(setting, 5)
    on_device = DeviceSearch(setting.buffer, 24, table=jax.tree.map(jnp.asarray, table))
    expected = HostSearch(setting.buffer, 24, ngram=smaller)(packed)
    np.testing.assert_array_equal(np.asarray(on_device(packed))[:, :3], expected[:, :3])
