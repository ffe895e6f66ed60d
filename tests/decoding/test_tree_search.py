"""The tree search against the reference's trees, a literal transcription, and its invariants."""

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_search import paths, transcribe
from ngram_corpora import random_documents
from safetensors.numpy import load_file

from dart_jax import _core
from dart_jax.ngram import NgramModel

GOLDEN = Path(__file__).parents[1] / "golden"
VOCAB = 60  # of the models here; frequent tokens are below 12
EOS = (3, 50)

f32 = np.float32


def search(model, context, tokens, logits, pairs=None, **config):
    """The trees of a batch, as the search writes them."""
    return scored_search(model, context, tokens, logits, pairs, **config)[0]


def scored_search(model, context, tokens, logits, pairs=None, **config):
    """The trees of a batch and their nodes' scores."""
    trees = np.full((len(context), 3, config["nodes"] + 1), -7, np.int32)
    scores = np.full((len(context), config["nodes"] + 1), -7, np.float32)
    core = model.core if model else None
    _core.TreeSearch(core, **config).search(context, tokens, logits, trees, pairs, scores=scores)
    return trees, scores


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
        config["ngram_weight"] = one_of(0.0, 1.0, 3.0, 1e6)
        config["level_decay"] = one_of(0.0, 0.5, 40.0)
        config["logit_decay"] = one_of(0.0, 0.5, 1.0)
        config["eps"] = one_of(2.0**-40, 2.0**-2)
    return model_of(one_of(None, *range(1, _core.MAX_ORDER + 1))), drafts, config


seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(0, 70)
beams = st.integers(1, 25)
steps = st.sampled_from([0.0, 1.0])


def model_of(order):
    return None if order is None else ngram_model(order)


def check_tree(tree, root, row_tokens):
    """Checks the invariants of every tree. Returns its number of nodes."""
    token, parent, depth = tree
    size = np.count_nonzero(depth) + 1
    places = np.arange(1, size)
    assert (token[0], parent[0], depth[0]) == (root, 0, 0)
    assert not tree[:, size:].any()
    assert (parent[places] >= 0).all()
    assert (parent[places] < places).all()
    assert (depth[places] == depth[parent[places]] + 1).all()
    assert all(token[i] in row_tokens[depth[i] - 1] for i in places)
    assert len(set(paths(tree))) == size  # siblings differ
    return size - 1


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen3-draft-vocab"])
@pytest.mark.parametrize("prompt", range(4))
@pytest.mark.parametrize("step", range(4))
def test_trees_are_those_of_the_reference(name, prompt, step):
    golden = np.load(GOLDEN / name / "golden.npz")
    draft_to_target = load_file(GOLDEN / name / "drafter" / "model.safetensors")["d2t"]
    model = NgramModel.count(np.load(GOLDEN / name / "ngram_corpus.npy"), order=3)

    draft_logits = golden[f"draft_logits_{prompt}_{step}"]
    top = np.argsort(-draft_logits, axis=-1, kind="stable")[:, :25]
    tokens = (top + draft_to_target[top]).astype(np.int32)
    logits = np.take_along_axis(draft_logits, top, axis=-1)
    context = golden[f"preceding_{prompt}_{step}"][-2:].astype(np.int32)
    config = {"nodes": 59, "eos": [511]}
    [tree] = search(model, context[None], tokens[None], logits[None], **config)

    node_tokens = golden[f"draft_tokens_{prompt}_{step}"]
    expected = set()
    for leaf in golden[f"retrieve_indices_{prompt}_{step}"]:
        path = tuple(node_tokens[leaf[leaf >= 0]].tolist())
        expected.update(path[:n] for n in range(1, len(path) + 1))
    assert len(expected) == 60
    assert set(paths(tree)) == expected


@settings(max_examples=600)
@given(seeds, steps, st.sampled_from([0.0, 0.3]))
def test_trees_are_those_of_the_transcription(seed, step, repeat):
    model, drafts, config = random_case(seed, step=step, repeat=repeat)
    [tree] = search(model, *drafts, **config)
    context, tokens, logits = (array[0] for array in drafts)
    check_tree(tree, context[-1], tokens)
    assert paths(tree) == transcribe(model, context, tokens, logits, **config)[0]


@given(seeds, steps, st.integers(0, 20))
def test_a_tree_begins_with_every_smaller_one(seed, step, nodes):
    model, drafts, config = random_case(seed, step=step)
    size = min(nodes, config["nodes"])
    large = np.zeros((len(drafts[0]), 3, config["nodes"] + 1), np.int32)
    scores = np.ones((len(large), config["nodes"] + 1), np.float32)
    core = None if model is None else model.core
    _core.TreeSearch(core, **config).search(*drafts, large, scores=scores)
    small = search(model, *drafts, **{**config, "nodes": size})
    np.testing.assert_array_equal(large[:, :, : size + 1], small)
    used = scores[0, : np.count_nonzero(large[0, 2]) + 1]
    assert used[0] == 0
    assert (np.diff(used) <= 0).all()
    assert not scores[0, len(used) :].any()


@settings(max_examples=25)
@given(seeds, st.integers(2, 5), steps)
def test_trees_of_the_usual_size_are_those_of_the_transcription(seed, order, step):
    drafts = draw_drafts(seed, 1, 8, 25, step, context=4, vocab=VOCAB)
    config = {"nodes": 59, "eos": EOS}
    [tree] = search(ngram_model(order), *drafts, **config)
    row = [array[0] for array in drafts]
    assert paths(tree) == transcribe(ngram_model(order), *row, **config)[0]


def test_if_all_scores_tie_the_nodes_created_first_win():
    """All logits equal: level by level the smallest tokens under the smallest parents."""
    context, tokens, logits = draw_drafts(0, rows=1, levels=3, candidates=4)
    config = {"nodes": 12, "beam": 2, "level_decay": 0.0, "logit_decay": 1.0}
    [tree] = search(None, context, tokens, np.zeros_like(logits), **config)
    assert paths(tree) == transcribe(None, context[0], tokens[0], 0 * logits[0], **config)[0]
    first, second, _ = np.sort(tokens[0], axis=-1)
    # Every node of level 1 beats those of level 2, which are the children of the beam of two.
    expected = [(first_token,) for first_token in first]
    expected += [(parent, child) for parent in first[:2] for child in second]
    assert [path[1:] for path in paths(tree)[1:]] == expected


@given(seeds, sizes, beams, steps)
def test_order_of_candidates_does_not_matter(seed, nodes, beam, step):
    context, tokens, logits = draw_drafts(seed, step=step, repeat=0.2)
    config = {"nodes": nodes, "beam": beam, "eos": EOS}
    trees = search(ngram_model(3), context, tokens, logits, **config)
    order = np.random.default_rng(seed).permutation(tokens.shape[-1])
    shuffled = [np.ascontiguousarray(array[..., order]) for array in (tokens, logits)]
    np.testing.assert_array_equal(search(ngram_model(3), context, *shuffled, **config), trees)


def test_of_a_token_given_twice_the_higher_logit_counts():
    context, tokens, logits = draw_drafts(0, rows=1, candidates=5)
    doubled = np.concatenate([tokens, tokens[..., :2]], axis=-1)
    worse = np.concatenate([logits, logits[..., :2] - 1], axis=-1)
    np.testing.assert_array_equal(
        search(None, context, doubled, worse, nodes=40),
        search(None, context, tokens, logits, nodes=40),
    )


# Pair scores


def draw_pairs(seed, tokens, step):
    """Random pair scores of every kind, and candidates some of which cannot be used."""
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
    logits = np.where(rng.random(logits.shape) < share, f32(-np.inf), logits)
    tokens = np.where(rng.random(tokens.shape) < share / 5, np.int32(-1), tokens)
    return tokens, logits


@settings(max_examples=300)
@given(seeds, steps, st.sampled_from([0.0, 0.3]))
def test_trees_of_pair_scores_are_those_of_the_transcription(seed, step, repeat):
    model, (context, *drafts), config = random_case(seed, step=step, repeat=repeat)
    tokens, logits = with_unusable(seed, *drafts)
    pairs = draw_pairs(seed, tokens, step)
    [tree], [scores] = scored_search(model, context, tokens, logits, pairs, **config)
    check_tree(tree, context[0, -1], tokens[0])
    expected = transcribe(model, context[0], tokens[0], logits[0], pairs[0], **config)
    assert paths(tree) == expected[0]
    assert scores[: len(expected[1])].tolist() == expected[1]
    assert not scores[len(expected[1]) :].any()


@pytest.mark.long
@settings(max_examples=40)
@given(seeds, st.sampled_from([None, 2, 3]), steps, st.sampled_from([*range(1, 9), 16, 59]))
def test_usual_trees_of_pair_scores_are_those_of_the_transcription(seed, order, step, nodes):
    context, tokens, logits = draw_drafts(seed, 1, 8, 25, step, context=4, vocab=VOCAB)
    pairs = draw_pairs(seed, tokens, step)
    config = {"nodes": nodes, "eos": EOS}
    [tree] = search(model_of(order), context, tokens, logits, pairs, **config)
    row = context[0], tokens[0], logits[0], pairs[0]
    assert paths(tree) == transcribe(model_of(order), *row, **config)[0]


@settings(max_examples=60)
@given(seed=seeds, step=steps)
def test_pair_scores_of_zero_change_nothing(seed, step):
    model, drafts, config = random_case(seed, step=step, repeat=0.2, rows=3)
    pairs = np.zeros_like(draw_pairs(seed, drafts[1], step))
    for ours, theirs in zip(
        scored_search(model, *drafts, pairs, **config),
        scored_search(model, *drafts, **config),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=60)
@given(seeds, sizes, steps)
def test_pair_scores_follow_the_order_of_candidates(seed, nodes, step):
    context, tokens, logits = draw_drafts(seed, step=step)
    pairs = draw_pairs(seed, tokens, step)
    config = {"nodes": nodes, "beam": 5, "eos": EOS}
    trees = search(ngram_model(3), context, tokens, logits, pairs, **config)
    order = np.random.default_rng(seed).permutation(tokens.shape[-1])
    shuffled = [np.ascontiguousarray(array[..., order]) for array in (tokens, logits)]
    shuffled.append(np.ascontiguousarray(pairs[:, :, order][..., order]))
    np.testing.assert_array_equal(search(ngram_model(3), context, *shuffled, **config), trees)


def test_a_pair_score_moves_a_path():
    """Without it the likelier token follows first; with it each token has its own follower."""
    tokens = np.array([[[10, 11], [20, 21]]], np.int32)
    logits = np.array([[[0.5, 0], [0.5, 0]]], np.float32)
    pairs = np.array([[[[9, 0], [0, 9]]]], np.float32)  # 10 20, and 11 21
    drafts = np.array([[2]], np.int32), tokens, logits
    [without] = search(None, *drafts, nodes=4)
    assert [path[1:] for path in paths(without)[1:]] == [(10,), (10, 20), (11,), (10, 21)]
    [tree] = search(None, *drafts, pairs, nodes=4)
    assert [path[1:] for path in paths(tree)[1:]] == [(10,), (10, 20), (11,), (11, 21)]


# Sizes


@given(seeds, st.integers(1, 8), steps)
def test_few_nodes_need_few_levels(seed, nodes, step):
    """A drafter need not predict more levels than a tree has nodes."""
    model, (context, *drafts), config = random_case(seed, step=step, repeat=0.2)
    config["nodes"] = nodes
    trees = search(model, context, *drafts, **config)
    fewer = (array[:, :nodes] for array in drafts)
    np.testing.assert_array_equal(search(model, context, *fewer, **config), trees)


@pytest.mark.parametrize("levels", [2, 8, 20, 40])
@pytest.mark.parametrize("candidates", [1, 2, 25])
@pytest.mark.parametrize("order", [None, 2, 5])
def test_children_that_tie_their_parents(levels, candidates, order):
    """Each level's first token is certain, and always followed the one before: p = q = 1.

    The reference's cut may keep such a child and drop its parent. This search may not.
    """
    chain = tuple(range(levels + 1))
    model = None if order is None else NgramModel.count([[*chain, levels + 1]], order)
    tokens = np.arange(candidates) * 100 + np.arange(1, levels + 1)[:, None]
    tokens = tokens[None].astype(np.int32)
    logits = np.where(np.arange(candidates) == 0, f32(0), f32(-200)) + np.zeros(tokens.shape, f32)
    drafts = (np.zeros((1, 1), np.int32), tokens, logits)
    full = size_of_full_tree(levels, candidates)
    for nodes in (1, 3, levels - 1, levels, levels + 3, 59):
        [tree] = search(model, *drafts, nodes=nodes)
        assert check_tree(tree, 0, tokens[0]) == min(nodes, full)
        expected = [chain[: n + 1] for n in range(min(nodes, levels) + 1)]
        assert [path for path in paths(tree) if path in expected] == expected


def size_of_full_tree(levels, candidates, beam=20):
    size, width = 0, 1
    for _ in range(levels):
        size += width * candidates
        width = min(beam, width * candidates)
    return size


@settings(max_examples=200)
@given(seed=seeds)
def test_every_output_is_a_tree(seed):
    """With many ties: logits are multiples of 4, and most probabilities of the corpus 0."""
    model, (context, tokens, logits), config = random_case(seed, step=4.0, rows=3)
    trees = search(model, context, tokens, logits, **config)
    _, levels, candidates = tokens.shape
    most = min(config["nodes"], size_of_full_tree(levels, candidates, config["beam"]))
    for tree, root, row_tokens in zip(trees, context[:, -1], tokens, strict=True):
        assert check_tree(tree, root, row_tokens) == most


# Batches


@settings(max_examples=60)
@given(seed=seeds, rows=st.integers(0, 40), step=steps)
def test_threads_do_not_matter(seed, rows, step):
    model, drafts, config = random_case(seed, step=step, repeat=0.1, rows=rows)
    config["nodes"] %= 100
    alone = [search(model, *(array[i : i + 1] for array in drafts), **config) for i in range(rows)]
    expected = np.concatenate([np.zeros((0, 3, config["nodes"] + 1), np.int32), *alone])
    for threads in (1, 2, 5):
        trees = search(model, *drafts, threads=threads, **config)
        np.testing.assert_array_equal(trees, expected)


@given(seeds, st.integers(1, 9), st.integers(1, 5), st.integers(1, 30), st.integers(0, 5))
def test_rows_are_read_where_they_were_packed(seed, rows, levels, candidates, gap):
    drafts = draw_drafts(seed, rows, levels, candidates, context=4, vocab=VOCAB)
    context, tokens, logits = (
        array.reshape(rows, array[0].size).view(np.int32) for array in drafts
    )
    filler = np.full((rows, gap), -9, np.int32)
    packed = np.concatenate([filler, context, filler, tokens, logits, filler], axis=1)
    places = np.cumsum([0, gap, 4, gap, tokens.shape[1], logits.shape[1]])
    strided = (
        packed[:, places[1] : places[2]],
        packed[:, places[3] : places[4]].reshape(drafts[1].shape),
        packed[:, places[4] : places[5]].view(np.float32).reshape(drafts[2].shape),
    )
    for view, array in zip(strided, drafts, strict=True):
        assert np.shares_memory(view, packed)
        np.testing.assert_array_equal(view, array)
    config = {"nodes": 30, "eos": EOS, "threads": 2}
    np.testing.assert_array_equal(
        search(ngram_model(3), *strided, **config), search(ngram_model(3), *drafts, **config)
    )


def test_rows_may_all_be_the_same_one():
    """A stride of 0."""
    drafts = draw_drafts(0, rows=1)
    repeated = [np.broadcast_to(array, (3, *array.shape[1:])) for array in drafts]
    trees = search(ngram_model(3), *repeated, nodes=20)
    np.testing.assert_array_equal(trees, np.repeat(trees[:1], 3, axis=0))
    np.testing.assert_array_equal(trees[:1], search(ngram_model(3), *drafts, nodes=20))


def test_timed_search_equals_search():
    drafts = draw_drafts(0, rows=9)
    tree_search = _core.TreeSearch(ngram_model(3).core, nodes=30, eos=EOS, threads=2)
    trees = np.full((9, 3, 31), -7, np.int32)
    seconds = tree_search.timed_search(*drafts, trees)
    assert (seconds.dtype, seconds.shape) == (np.float64, (9,))
    assert (seconds > 0).all()
    assert tree_search.seconds <= seconds.sum()
    expected = search(ngram_model(3), *drafts, nodes=30, eos=EOS)
    np.testing.assert_array_equal(trees, expected)


def test_seconds_add_up():
    drafts = draw_drafts(0)
    tree_search = _core.TreeSearch(None, nodes=30)
    assert tree_search.seconds == 0
    out = np.zeros((3, 3, 31), np.int32)
    tree_search.search(*drafts, out)
    first = tree_search.seconds
    assert first > 0
    tree_search.search(*drafts, out)
    assert tree_search.seconds > first


@pytest.mark.parametrize(
    ("levels", "candidates", "ngram"), [(0, 5, True), (0, 0, True), (0, 0, False), (3, 0, False)]
)
def test_nothing_was_drafted(levels, candidates, ngram):
    """Levels without candidates are those of the n-gram model alone, where there is one."""
    context = np.array([[1, 2], [3, -1]], np.int32)
    shape = (2, levels, candidates)
    drafts = (context, np.zeros(shape, np.int32), np.zeros(shape, np.float32))
    trees = search(ngram_model(3) if ngram else None, *drafts, nodes=5)
    expected = np.zeros((2, 3, 6), np.int32)
    expected[0, 0, 0] = 2
    np.testing.assert_array_equal(trees, expected)


def test_slots_beyond_all_candidates_are_padding():
    context, tokens, logits = draw_drafts(0, levels=2, candidates=2)
    trees = search(ngram_model(3), context, tokens, logits, nodes=100)
    assert (np.count_nonzero(trees[:, 2], axis=-1) == 2 + 4).all()
    assert not trees[:, :, 7:].any()


def test_finished_rows_are_empty():
    context, tokens, logits = draw_drafts(0)
    unfinished = search(ngram_model(3), context, tokens, logits, nodes=20)
    context[1, -1] = -1
    trees = search(ngram_model(3), context, tokens, logits, nodes=20)
    assert not trees[1].any()
    np.testing.assert_array_equal(trees[[0, 2]], unfinished[[0, 2]])


@given(seed=seeds, share=st.floats(0, 1))
def test_unusable_candidates_are_ignored(seed, share):
    """NaN and infinite logits and negative tokens, anywhere."""
    rng = np.random.default_rng(seed)
    context, tokens, logits = draw_drafts(seed, rows=1)
    bad = rng.random(tokens.shape) < share
    logits[bad] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 1]), bad.sum())
    tokens[bad & (logits == 1)] = -1
    config = {"nodes": 30}
    [tree] = search(ngram_model(3), context, tokens, logits, **config)
    row = (context[0], tokens[0], logits[0])
    assert paths(tree) == transcribe(ngram_model(3), *row, **config)[0]


def test_a_level_without_candidates_ends_the_tree():
    context, tokens, logits = draw_drafts(0, rows=1)
    tokens[0, 2] = -1
    [tree] = search(ngram_model(3), context, tokens, logits, nodes=1000)
    assert tree[2].max() == 2
    assert np.count_nonzero(tree[2]) == 7 + 7 * 7


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
    drafts = draw_drafts(0)
    documents = np.random.default_rng(1).integers(0, 12, (40, 30))
    lasting = NgramModel.count(documents)
    searches = [
        _core.TreeSearch(NgramModel.count(documents).core, nodes=30),
        _core.TreeSearch(lasting.core, nodes=30),
    ]
    trees = np.zeros((2, 3, 3, 31), np.int32)
    for tree_search, out in zip(searches, trees, strict=True):
        tree_search.search(*drafts, out)
    np.testing.assert_array_equal(*trees)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("context", lambda a: a.astype(np.int64), r"context must be int32, got int64"),
        ("context", lambda a: a[0], r"context must have shape \[\*, \*\], got \[2\]"),
        ("context", lambda a: a[:, :0].copy(), r"context must hold at least the root"),
        ("context", lambda a: a[:, ::-1], r"context must be contiguous within a row"),
        ("context", lambda a: a[::-1], r"context must be contiguous within a row"),
        ("context", lambda a: np.asfortranarray(a), r"context must be contiguous within a row"),
        ("tokens", lambda a: a[:2], r"tokens must have shape \[3, \*, \*\], got \[2, 5, 7\]"),
        ("tokens", lambda a: a[..., ::2], r"tokens must be contiguous within a row"),
        ("tokens", lambda a: a[:, ::2], r"tokens must be contiguous within a row"),
        ("logits", lambda a: a.astype(np.float16), r"logits must be float32, got float16"),
        ("logits", lambda a: a[:, :4], r"logits must have shape \[3, 5, 7\], got \[3, 4, 7\]"),
        ("out", lambda a: a[..., :-1], r"out must have shape \[3, 3, 21\], got \[3, 3, 20\]"),
        ("out", lambda a: np.broadcast_to(a[:1], a.shape), r"out must be C-contiguous"),
        (
            "logits",
            lambda a: (
                np.frombuffer(b"." + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape)
            ),
            r"logits must be aligned",
        ),
    ],
)
@pytest.mark.parametrize("method", ["search", "timed_search"])
def test_wrong_buffers_are_named(method, name, damage, message):
    arrays = dict(zip(("context", "tokens", "logits"), draw_drafts(0), strict=True))
    arrays["out"] = np.zeros((3, 3, 21), np.int32)
    arrays[name] = damage(arrays[name])
    with pytest.raises(ValueError, match=message):
        getattr(_core.TreeSearch(None, nodes=20), method)(**arrays)


def test_output_must_be_writeable():
    out = np.zeros((3, 3, 21), np.int32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writeable"):
        _core.TreeSearch(None, nodes=20).search(*draw_drafts(0), out)


def test_too_much_to_score_is_refused():
    shape = (1, 3, 50_000)
    drafts = (np.ones((1, 1), np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="beam times candidates is too large"):
        search(None, *drafts, nodes=1, beam=2**31 - 1)


@pytest.mark.parametrize(
    "config",
    [
        {"nodes": -1},
        {"beam": 0},
        {"eps": 0.0},
        {"eps": 1.0},
        {"level_decay": -1.0},
        {"level_decay": np.nan},
        {"logit_decay": 2},
        {"logit_decay": -0.1},
        {"ngram_weight": -1.0},
        {"ngram_weight": np.inf},
        {"threads": 0},
    ],
)
def test_wrong_parameters_are_rejected(config):
    with pytest.raises(ValueError, match=next(iter(config))):
        _core.TreeSearch(None, **{"nodes": 20, **config})
