"""The ancestor mask against a literal version that walks from each node to the root."""

import jax.numpy as jnp
import numpy as np
from conftest import grow_tree
from hypothesis import given
from hypothesis import strategies as st

from dart_jax.decoding.tree import ancestor_mask, root_only, unpack, unused_as_root, with_unused


def literal_mask(parents):
    mask = np.zeros((len(parents), len(parents)), bool)
    for node in range(len(parents)):
        mask[node, node] = True
        ancestor = node
        while ancestor:
            ancestor = parents[ancestor]
            mask[node, ancestor] = True
    return mask


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_mask_is_the_literal_one(seed, max_depth):
    rng = np.random.default_rng(seed)
    rows = [grow_tree(rng, 20, max_depth, 3, truth) for truth in ([], [0] * max_depth)]
    tree = unpack(jnp.asarray(np.stack(rows)))
    mask = np.asarray(ancestor_mask(tree, max_depth))
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, [literal_mask(parents) for _, parents, _ in rows])


def test_the_example_of_the_docstring():
    tree = unpack(jnp.asarray([[[7, 8, 9, 10, 0], [0, 0, 0, 1, 0], [0, 1, 1, 2, 0]]], jnp.int32))
    rows = ["1 . . . .", "1 1 . . .", "1 . 1 . .", "1 1 . 1 .", "1 . . . 1"]
    expected = [[place == "1" for place in row.split()] for row in rows]
    np.testing.assert_array_equal(ancestor_mask(tree, max_depth=2)[0], expected)
    assert tree.real.tolist() == [[False, True, True, True, False]]


def test_a_tree_that_is_only_a_root():
    tree = root_only(jnp.asarray([5, 6], jnp.int32))
    assert tree.tokens.tolist() == [[5], [6]]
    assert not tree.real.any()
    assert ancestor_mask(tree, max_depth=0).tolist() == [[[True]], [[True]]]


def test_unused_slots_compute_what_the_root_does():
    tree = unpack(jnp.asarray([[[7, 8, 0], [0, 0, 0], [0, 1, 0]], [[9, 0, 0], [0] * 3, [0] * 3]]))
    tree = with_unused(tree, 5)
    mask = ancestor_mask(tree, max_depth=2)
    tokens, seen = unused_as_root(tree, mask)
    assert tokens.tolist() == [[7, 8, 7, 7, 7], [9] * 5]
    for row, real in enumerate(tree.real):
        for node in range(5):
            expected = mask[row, node if real[node] else 0]
            np.testing.assert_array_equal(seen[row, node], expected)
