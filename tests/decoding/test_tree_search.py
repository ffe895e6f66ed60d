"""The tree search against a literal transcription, and its invariants."""

import contextlib
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_search import TooManyTiesError, check_tree
from ngram_corpora import random_documents

from dart_jax import _core
from dart_jax.ngram import NgramModel

VOCAB = 60  # of the models here; frequent tokens are below 12
EOS = (3, 50)

f32 = np.float32


def search(model, context, tokens, logits, pairs=None, **config):
    """The trees of a batch."""
    rows, (levels, candidates) = len(context), tokens.shape[1:]
    trees = np.full((rows, 4, config["nodes"] + 1), -7, np.int32)
    parts = [each for each in (context, tokens, logits, pairs) if each is not None]
    packed = np.concatenate([each.reshape(rows, -1).view(np.int32) for each in parts], axis=1)
    layout = {"context": context.shape[1], "levels": levels, "candidates": candidates}
    core = _core.TreeSearch(model.core if model else None, **config)
    core.search(packed, trees, **layout, pairs=pairs is not None)
    return trees


@functools.cache
def ngram_model(order):
    """A few frequent tokens, which give long continuation lists at every context length."""
    rng = np.random.default_rng(order)
    frequent = rng.integers(0, 12, (40, 30)).tolist()
    mixed = random_documents(order, VOCAB, documents=6, length=800)
    return NgramModel.count([*frequent, *mixed], order, vocab_size=VOCAB)


def draw_drafts(seed, rows=3, levels=5, candidates=7, step=0.0, context=2, vocab=12, repeat=0.0):
    """Random drafts. With `step`, logits are multiples of it and so often tie; a share `repeat` of
    the tokens occurs twice at a level."""
    rng = np.random.default_rng(seed)
    tokens = rng.permuted(np.broadcast_to(np.arange(vocab), (rows, levels, vocab)), axis=-1)
    tokens = tokens[..., :candidates].copy()
    again = rng.random(tokens.shape) < repeat
    tokens[again] = rng.integers(0, vocab, np.count_nonzero(again))
    logits = rng.normal(0, 2, tokens.shape)
    if step:
        logits = np.round(logits / step) * step
    before = rng.integers(0, vocab, (rows, context))
    missing = rng.integers(0, context, rows)
    missing[rng.random(rows) < 0.5] = 0
    before[np.arange(context)[None] < missing[:, None]] = -1
    return before.astype(np.int32), tokens.astype(np.int32), logits.astype(np.float32)


def random_case(seed, *, step, repeat=0.0, rows=1):
    """A model or None, drafts and parameters of every kind, some at the ends of their ranges."""
    rng = np.random.default_rng(seed)

    def one_of(*values):
        return values[rng.integers(len(values))]

    drafts = draw_drafts(
        seed,
        rows,
        levels=int(one_of(*range(9), *range(4, 9))),
        candidates=int(one_of(1, 2, *range(3, 41, 4))),
        step=step,
        context=int(one_of(*range(1, 8))),
        vocab=VOCAB,
        repeat=one_of(0.0, repeat),
    )
    config = {
        "nodes": int(one_of(0, 1, 4000, *rng.integers(2, 80, 6))),
        "beam": int(one_of(1, *rng.integers(2, 26, 6))),
        "eos": one_of((), (99,), EOS, EOS, tuple(range(0, VOCAB, 2)), tuple(range(VOCAB))),
    }
    # Values that float32 holds. With large eps the reference does not keep log(p + eps) below 0.
    if rng.random() < 0.5:
        config["ngram_weight"] = one_of(0.0, 1.0, 3.0, 30.0)
        config["level_decay"] = one_of(0.0, 0.5, 40.0)
        config["logit_decay"] = one_of(0.0, 0.5, 1.0)
        config["eps"] = one_of(2.0**-40, 2.0**-2)
    return model_of(one_of(None, *range(1, _core.MAX_ORDER + 1))), drafts, config


seeds = st.integers(0, 2**32 - 1)
steps = st.sampled_from([0.0, 1.0])


def model_of(order):
    return None if order is None else ngram_model(order)


def draw_pairs(seed, tokens, step):
    """Random pair scores of every kind."""
    rng = np.random.default_rng(seed)
    rows, levels, candidates = tokens.shape
    pairs = rng.normal(0, 3, (rows, max(levels - 1, 0), candidates, candidates))
    if step:
        pairs = np.round(pairs / step) * step
    some = rng.random(pairs.shape) < rng.choice([0, 0.1])
    pairs[some] = rng.choice([np.inf, -np.inf, np.nan, 3e38, -3e38], np.count_nonzero(some))
    return pairs.astype(np.float32)


def with_unusable(seed, tokens, logits):
    """The same drafts, some of which the filters left out, or which are no tokens."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0, 0.2, 0.7])
    odd = rng.choice(np.array([-np.inf, -np.inf, np.inf, np.nan], f32), logits.shape)
    logits = np.where(rng.random(logits.shape) < share, odd, logits)
    tokens = np.where(rng.random(tokens.shape) < share / 5, np.int32(-1), tokens)
    return tokens, logits


@settings(max_examples=250)
@given(seeds, steps, st.sampled_from([0.0, 0.3]), st.booleans())
def test_trees_are_those_of_the_transcription(seed, step, repeat, with_pairs):
    """Ties, tokens given twice and candidates of no use included; children come after parents."""
    model, (context, *drafts), config = random_case(seed, step=step, repeat=repeat)
    tokens, logits = with_unusable(seed, *drafts)
    pairs = draw_pairs(seed, tokens, step) if with_pairs else None
    [tree] = search(model, context, tokens, logits, pairs, **config)
    row = context[0], tokens[0], logits[0], None if pairs is None else pairs[0]
    with contextlib.suppress(TooManyTiesError):
        check_tree(tree, model, *row, **config)
    size = np.count_nonzero(tree[2]) + 1
    parents, depth = tree[1:3, 1:size]
    assert (parents < np.arange(1, size)).all()
    assert (depth == tree[2, parents] + 1).all()
    assert not tree[:, size:].any()


@given(seeds, st.integers(1, 8), steps)
def test_few_nodes_need_few_levels(seed, nodes, step):
    """A drafter need not predict more levels than a tree has nodes."""
    model, (context, *drafts), config = random_case(seed, step=step, repeat=0.2)
    config["nodes"] = nodes
    trees = search(model, context, *drafts, **config)
    fewer = (array[:, :nodes] for array in drafts)
    np.testing.assert_array_equal(search(model, context, *fewer, **config), trees)


def test_tokens_beyond_the_models_vocabulary_are_unseen():
    context, tokens, logits = draw_drafts(0, rows=1)
    tokens += VOCAB
    tokens[0, :, 0] = 2**31 - 1
    with_model, without = (
        search(model, context, tokens, logits, nodes=20, ngram_weight=0.0)
        for model in (ngram_model(5), None)
    )
    np.testing.assert_array_equal(with_model, without)


def test_model_is_kept_alive_by_the_search():
    documents = np.random.default_rng(1).integers(0, 12, (40, 30))
    lasting = NgramModel.count(documents)
    searches = [
        _core.TreeSearch(NgramModel.count(documents).core, nodes=30),
        _core.TreeSearch(lasting.core, nodes=30),
    ]
    packed = np.random.default_rng(2).integers(0, 12, (3, 2 + 2 * 5 * 7)).astype(np.int32)
    trees = np.zeros((2, 3, 4, 31), np.int32)
    for tree_search, out in zip(searches, trees, strict=True):
        tree_search.search(packed, out, context=2, levels=5, candidates=7)
    np.testing.assert_array_equal(*trees)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packed": np.zeros((3, 72), np.int64)}, r"packed must be int32, got int64"),
        ({"packed": np.zeros((3, 70), np.int32)}, r"packed must have shape \[\*, 72\]"),
        ({"packed": np.zeros((3, 144), np.int32)[:, ::2]}, r"packed must be C-contiguous"),
        ({"pairs": True}, r"packed must have shape \[\*, 268\], got \[3, 72\]"),
        ({"context": 0}, r"context must hold at least the root"),
        ({"out": np.zeros((3, 4, 20), np.int32)}, r"out must have shape \[3, 4, 21\], got"),
        ({"out": np.broadcast_to(np.int32(0), (3, 4, 21))}, r"out must be C-contiguous"),
    ],
)
def test_wrong_buffers_are_named(change, message):
    arrays = {"packed": np.zeros((3, 72), np.int32), "out": np.zeros((3, 4, 21), np.int32)}
    layout = {"context": 2, "levels": 5, "candidates": 7}
    with pytest.raises(ValueError, match=message):
        _core.TreeSearch(None, nodes=20).search(**{**arrays, **layout, **change})


def test_too_much_to_score_is_refused():
    shape = (1, 3, 50_000)
    drafts = (np.ones((1, 1), np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="beam times candidates is too large"):
        search(None, *drafts, nodes=1, beam=2**31 - 1)
