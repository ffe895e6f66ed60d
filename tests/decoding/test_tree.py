"""Draft trees: acceptance, by their ancestor masks, against literal walks along their edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from conftest import grow_tree
from hypothesis import given
from hypothesis import strategies as st

from dart_jax.decoding.step import accept
from dart_jax.decoding.tree import ancestor_mask, unpack, unused_as_root, with_unused


def test_unused_slots_compute_what_the_root_does():
    tree = unpack(jnp.asarray([[[7, 8, 0], [0, 0, 0], [0, 1, 0]], [[9, 0, 0], [0] * 3, [0] * 3]]))
    tree = with_unused(tree, 5)
    mask = ancestor_mask(tree, max_depth=2)
    tokens, seen = unused_as_root(tree, mask)
    assert tokens.tolist() == [[7, 8, 7, 7, 7], [9] * 5]
    assert tree.real.tolist() == [[False, True, False, False, False], [False] * 5]
    for row, real in enumerate(tree.real):
        for node in range(5):
            expected = mask[row, node if real[node] else 0]
            np.testing.assert_array_equal(seen[row, node], expected)


NODES, DEPTH, VOCAB = 20, 8, 3


@functools.partial(jax.jit, static_argnums=2)
def accept_packed(packed, draws, max_depth):
    tree = unpack(packed)
    return accept(tree, ancestor_mask(tree, max_depth), draws, max_depth)


def draw_for(rng, tree):
    """Draws of a target at every node: mostly the token of one of its children."""
    token, parent, depth, *_ = tree
    draws = rng.integers(0, VOCAB, NODES + 1)
    for node in range(NODES + 1):
        children = np.flatnonzero((parent == node) & (depth > 0))
        if children.size and rng.random() < 0.9:
            draws[node] = token[rng.choice(children)]
    return draws.astype(np.int32)


def literal_walk(tree, draws):
    token, parent, depth, *_ = tree
    path = [0]
    while True:
        agreeing = (parent == path[-1]) & (depth > 0) & (token == draws[path[-1]])
        if not agreeing.any():
            return path
        path.append(int(np.flatnonzero(agreeing)[0]))


@given(st.integers(0, 2**32 - 1))
def test_path_is_that_of_the_literal_walk(seed):
    rng = np.random.default_rng(seed)
    trees = [grow_tree(rng, NODES, DEPTH, VOCAB, [0] * rng.integers(DEPTH + 1)) for _ in range(3)]
    choices = [draw_for(rng, tree) for tree in trees]
    accepted = accept_packed(jnp.asarray(np.stack(trees)), jnp.asarray(np.stack(choices)), DEPTH)
    for tree, draws, path, tokens, count in zip(
        trees, choices, *map(np.asarray, accepted), strict=True
    ):
        expected = literal_walk(tree, draws)
        assert count == len(expected)
        assert path.tolist() == expected + [0] * (DEPTH + 1 - count)
        assert tokens[:count].tolist() == draws[expected].tolist()
