"""Drafts of the text itself: the C++ core, whose tests have the formula, and JAX draft alike, with
and without a drafter's trees and the noise of the target's draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native

from dart_jax import _core
from dart_jax.decoding.drafting.text import LONGEST, Texts, draft_from_text
from dart_jax.decoding.sampling import Noise, SamplingValues, row_keys
from dart_jax.decoding.tree import unpack

ROWS, LENGTH, NODES, VOCABULARY = 40, 64, 12, 9
TRUST = (np.arange(1, LONGEST + 1) / np.arange(3, LONGEST + 3)).astype(np.float32)


def random_texts(rng, *, sampled):
    """Texts, of which every third is decoded greedily if any is not, and some may draft from
    others."""
    text = rng.integers(0, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    length = rng.integers(1, LENGTH - 12, ROWS).astype(np.int32)
    text[:4, 40:52] = text[:4, 3:15]  # long matches
    length[:4] = 50
    shared = np.where(np.arange(ROWS) % 2 == 0, 0, 10).astype(np.int32)
    place = np.arange(LENGTH)
    others = (place >= LENGTH - shared[:, None]) & (place != LENGTH - 5)
    text = np.where((place < length[:, None]) | others, text, -1)
    sampling, noise = SamplingValues(), None
    if sampled:
        temperature = np.where(np.arange(ROWS) % 3 == 0, 0, 0.8).astype(np.float32)
        sampling = SamplingValues(jnp.asarray(temperature))
        keys = row_keys(np.uint32(3), np.arange(ROWS, dtype=np.int32))
        noise = Noise(keys, jnp.asarray(length))
    return Texts(*map(jnp.asarray, (text, length, shared, TRUST)), sampling, noise)


def random_trees(rng, texts):
    """Trees as a drafter makes them, of which some have unused places."""
    trees = np.zeros((ROWS, 4, NODES + 1), np.int32)
    for row, tree in enumerate(trees):
        tree[0, 0] = texts.tokens[row, texts.length[row] - 1]
        scores, used = [0.0], int(rng.integers(1, NODES + 1))
        taken = set()
        for place in range(1, used + 1):
            parent, token = int(rng.integers(0, place)), int(rng.integers(VOCABULARY))
            if (parent, token) in taken:
                break
            taken.add((parent, token))
            scores.append(scores[parent] - float(rng.exponential(0.7)))
            tree[:3, place] = token, parent, tree[2, parent] + 1
        tree[3, : len(scores)] = np.array(scores, np.float32).view(np.int32)
    return trees


def nodes_of(tree):
    """The paths of a tree's nodes, and their scores."""
    paths, scores = [()], tree[3].view(np.float32)
    for place in range(1, tree.shape[1]):
        if tree[2, place] == 0:
            break
        assert tree[1, place] < place
        paths.append((*paths[tree[1, place]], int(tree[0, place])))
        assert len(paths[-1]) == tree[2, place]
    return dict(zip(paths[1:], scores[1:].tolist(), strict=False))


@native
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("drafter", [False, True])
def test_two_ways_draft_alike(sampled, drafter):
    rng = np.random.default_rng(5)
    texts = random_texts(rng, sampled=sampled)
    base = jnp.asarray(random_trees(rng, texts)) if drafter else None
    core, plain = (
        np.asarray(draft_from_text(texts, base, NODES, 6, VOCABULARY, native=native))
        for native in (True, False)
    )
    drafted = 0
    for row in range(ROWS):
        ours, theirs = nodes_of(core[row]), nodes_of(plain[row])
        np.testing.assert_allclose(sorted(ours.values()), sorted(theirs.values()), atol=1e-4)
        both = ours.keys() & theirs.keys()
        assert len(ours) - len(both) <= len(ours) / 2  # others are ties
        assert all(abs(ours[path] - theirs[path]) < 1e-4 for path in both)
        drafted += len(ours)
    assert drafted > ROWS * NODES / 3


def alone(text, nodes, base=None):
    """The tree of one text, by JAX."""
    texts = Texts(
        jnp.asarray([text], jnp.int32),
        jnp.asarray([sum(token >= 0 for token in text)], jnp.int32),
        jnp.zeros((1,), jnp.int32),
        jnp.asarray(TRUST),
        SamplingValues(),
        None,
    )
    [tree] = jax.jit(lambda *of: draft_from_text(*of, nodes, nodes, 99, native=False))(texts, base)
    return np.asarray(tree)


def test_a_repeated_line_is_one_long_draft():
    line = list(range(20, 50))
    tree = alone([*line, 7, 8, *line[:12], *([-1] * 20)], 10)
    assert tree[0].tolist() == line[11:22]
    assert tree[2].tolist() == [*range(11)]


def test_nothing_is_drafted_where_nothing_repeats():
    tree = alone(range(50), 8)
    assert tree[0, 0] == 49
    assert not tree[:, 1:].any()
    texts = random_texts(np.random.default_rng(0), sampled=False)
    base = random_trees(np.random.default_rng(0), texts)[:1]
    base[0, 0, 0] = 49
    np.testing.assert_array_equal(alone(range(50), NODES, jnp.asarray(base)), base[0])


@pytest.mark.parametrize("way", [False, pytest.param(True, marks=native)])
def test_a_text_does_not_go_on_in_the_next_one(way):
    """Where others' tokens come right after it."""
    texts = Texts(
        jnp.arange(60, dtype=jnp.int32)[None],
        *(jnp.full(1, count, jnp.int32) for count in (50, 10)),
        jnp.asarray(TRUST),
        SamplingValues(),
        None,
    )
    [tree] = np.asarray(draft_from_text(texts, None, 8, 8, 99, native=way))
    assert tree[0, 0] == 49
    assert not tree[:, 1:].any()


def test_the_host_drafts_the_same():
    """The first tree of a text."""
    line = list(range(20, 50))
    text = np.array([*line, 7, 8, *line[:12]], np.int32)
    tree = np.zeros((4, 11), np.int32)
    _core.text_tree(text, tree, depth=10, trust=TRUST)
    assert nodes_of(tree).keys() == nodes_of(alone(text, 10)).keys()
    assert unpack(tree[None]).real.sum() == 10
