"""The tree search, in C++ and on the device, against its formulas."""

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
from ngram_corpora import random_documents

from dart_jax import _core
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.ngram import NgramModel
from dart_jax.ngram.device_table import device_table, table_bytes

VOCAB = 60  # of the models here; frequent tokens are below 12
ODD = (np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0)

# As users compile; the other tests do without optimisation (conftest.py).
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}

seeds = st.integers(0, 2**32 - 1)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The shapes and options of a search."""

    order: int | None = 3
    levels: int = 5
    candidates: int = 7
    nodes: int = 24
    eos: tuple[int, ...] = (3, 50)
    pairs: bool = False
    search: SearchConfig = SearchConfig()

    @property
    def buffer(self):
        return HostBuffer(self.levels, self.candidates, pairs=self.pairs)

    @property
    def ngram(self):
        return None if self.order is None else ngram_model(self.order)

    def in_cpp(self, **changes):
        options = {"ngram": self.ngram, "eos": self.eos, "search": self.search, **changes}
        return HostSearch(self.buffer, self.nodes, **options)

    def on_device(self):
        table = None if self.order is None else table_of(self.order)
        options = {"eos": self.eos, "search": self.search}
        return DeviceSearch(self.buffer, self.nodes, table=table, **options)


@cache
def ngram_model(order):
    """A few frequent tokens, which give long continuation lists at every context length."""
    rng = np.random.default_rng(order)
    frequent = rng.integers(0, 12, (40, 30)).tolist()
    mixed = random_documents(order, VOCAB, documents=6, length=800)
    return NgramModel.count([*frequent, *mixed], order, vocab_size=VOCAB)


@cache
def table_of(order):
    return jax.tree.map(jnp.asarray, device_table(ngram_model(order)))


def random_drafts(setting, seed, rows=64):
    """Packed drafts of every kind: equal scores, tokens given twice or not in the n-gram model, and
    rows, tokens and numbers of no use."""
    rng = np.random.default_rng(seed)
    buffer, k, share = setting.buffer, setting.candidates, rng.choice([0, 0.1, 0.6])
    vocab, step = rng.choice([max(k, 12), VOCAB]), rng.choice([0.0, 1.0])

    def with_odd(x, share, values):
        return np.where(rng.random(x.shape) < share, rng.choice(values, x.shape), x)

    def numbers(*shape):
        drawn = rng.normal(0, 2, (rows, *shape))
        drawn = np.round(drawn / step) * step if step else drawn
        return with_odd(drawn, share, ODD).astype(np.float32)

    tokens = rng.permuted(np.broadcast_to(np.arange(vocab), (rows, setting.levels, vocab)), axis=-1)
    tokens = with_odd(tokens[..., :k], share / 3, [-1, *range(12), VOCAB, 2**31 - 1])
    context = rng.integers(0, 12, (rows, CONTEXT))
    context[np.arange(CONTEXT) < rng.integers(0, CONTEXT, (rows, 1))] = -1
    context[rng.random(rows) < 0.05, -1] = -1
    drawn = numbers(setting.levels, k), numbers(*buffer.pairs_shape)
    parts = context, tokens, *(x.view(np.int32) for x in drawn)
    return np.concatenate([x.reshape(rows, -1) for x in parts], axis=1).astype(np.int32)


def random_setting(seed):
    """Of every kind, some at the ends of their ranges."""
    rng = np.random.default_rng(seed)

    def one_of(*values):
        return values[rng.integers(len(values))]

    weights = one_of((), (), (0.0, 1.0, 3.0), (40.0, 0.0, 30.0), (0.5, 0.5, 0.0))
    return Setting(
        order=one_of(None, *range(1, _core.MAX_ORDER + 1)),
        levels=one_of(*range(1, 9)),
        candidates=one_of(1, 2, *range(3, 41, 4)),
        nodes=int(one_of(0, 1, 4000, *rng.integers(2, 80, 6))),
        eos=one_of((), (99,), (3, 50), (3, 50), tuple(range(0, VOCAB, 2)), tuple(range(VOCAB))),
        pairs=one_of(False, True),
        search=SearchConfig(int(one_of(1, *rng.integers(2, 26, 6))), *weights),
    )


def check(setting, packed, tree):
    """Raises AssertionError unless a row's tree is right."""
    context, ids, logits, pairs = (x[0] for x in setting.buffer.unpack(packed[None]))
    if context[-1] < 0:
        assert not tree.any()
        return
    options = {**dataclasses.asdict(setting.search), "nodes": setting.nodes, "eos": setting.eos}
    pairs = pairs if setting.pairs else None
    with contextlib.suppress(TooManyTiesError):
        check_tree(tree, setting.ngram, context, ids, logits, pairs, **options)


@settings(max_examples=250)
@given(seeds)
def test_trees_in_cpp_are_those_of_the_formulas(seed):
    setting = random_setting(seed)
    packed = random_drafts(setting, seed, rows=1)
    [tree] = setting.in_cpp()(packed)
    check(setting, packed[0], tree)


@given(seeds, st.integers(1, 8))
def test_few_nodes_need_few_levels(seed, nodes):
    """A drafter need not predict more levels than a tree has nodes."""
    setting = dataclasses.replace(random_setting(seed), nodes=nodes, pairs=False)
    packed = random_drafts(setting, seed, rows=3)
    fewer = dataclasses.replace(setting, levels=min(setting.levels, nodes))
    context, *drafts, _ = setting.buffer.unpack(packed)
    parts = [x[:, :nodes].reshape(3, -1).view(np.int32) for x in drafts]
    trees = fewer.in_cpp()(np.concatenate([context, *parts], axis=1))
    np.testing.assert_array_equal(trees, setting.in_cpp()(packed))


SETTINGS = [
    Setting(order=None, levels=8, candidates=25, nodes=512, eos=tuple(range(0, VOCAB, 2))),
    Setting(order=1, levels=3, candidates=1, nodes=6),
    Setting(order=4, levels=2, candidates=11, nodes=600, eos=tuple(range(VOCAB))),
    Setting(order=3, levels=8, candidates=25, nodes=60, eos=()),
    Setting(order=3, levels=1, candidates=25, nodes=10),
    Setting(order=3, levels=3, candidates=5, nodes=0),
    Setting(order=4, search=SearchConfig(beam=1, ngram_weight=0.0), nodes=1, eos=(3,)),
    Setting(order=5, search=SearchConfig(25, 2.5, 0.5, 30.0), levels=7, candidates=31, nodes=70),
    Setting(order=2, search=SearchConfig(13, 0.0, 0.0, 1.0), levels=6, candidates=19, eos=(99,)),
    Setting(order=None, pairs=True, levels=8, candidates=25, nodes=60),
    Setting(order=4, pairs=True, levels=6, candidates=13, nodes=40, search=SearchConfig(beam=5)),
]


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("setting", SETTINGS, ids=range(len(SETTINGS)))
def test_trees_on_the_device_are_those_in_cpp(setting, optimised):
    """Those that differ by more than rounding must be right all the same."""
    search = jax.jit(DeviceSearch.in_program, compiler_options=OPTIMISED if optimised else None)
    in_cpp, on_device = setting.in_cpp(), setting.on_device()
    for seed in range(6):
        packed = random_drafts(setting, seed)
        expected, trees = in_cpp(packed), np.asarray(search(on_device, packed))
        equal = (trees[:, :3] == expected[:, :3]).all(axis=(1, 2))
        scores = [each[equal][:, 3].view(np.float32) for each in (trees, expected)]
        near = 2e-6 * (1 + setting.search.ngram_weight)
        np.testing.assert_allclose(*scores, rtol=1e-5, atol=near)
        for row in np.flatnonzero(~equal):
            check(setting, packed[row], trees[row])


@pytest.mark.parametrize("order", [1, 3, 5])
def test_the_size_of_a_table_is_known_before(order):
    bound = table_bytes(sum(ngram_model(order).sizes[1:]))
    assert device_table(ngram_model(order)).nbytes == pytest.approx(bound, rel=0.01, abs=300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packed": np.zeros((3, 72), np.int64)}, r"packed must be int32, got int64"),
        ({"packed": np.zeros((3, 144), np.int32)[:, ::2]}, r"packed must be C-contiguous"),
        ({"pairs": True}, r"packed must have shape \[\*, 268\], got \[3, 72\]"),
        ({"context": 0}, r"context must hold at least the root"),
        ({"out": np.zeros((3, 4, 20), np.int32)}, r"out must have shape \[3, 4, 21\], got"),
    ],
)
def test_wrong_buffers_are_named(change, message):
    arrays = {"packed": np.zeros((3, 72), np.int32), "out": np.zeros((3, 4, 21), np.int32)}
    layout = {"context": 2, "levels": 5, "candidates": 7}
    with pytest.raises(ValueError, match=message):
        _core.TreeSearch(None, nodes=20).search(**{**arrays, **layout, **change})


def test_too_much_to_score_is_refused():
    setting = Setting(None, 3, 50_000, nodes=1, search=SearchConfig(beam=2**31 - 1))
    with pytest.raises(ValueError, match="beam times candidates is too large"):
        setting.in_cpp()(np.zeros((1, setting.buffer.width), np.int32))
