"""The nodes that pay, by brute force; probabilities and outcomes of random trees."""

import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.decoding import paying
from dart_jax.decoding.paying import (
    BINS,
    doubted,
    first_nodes,
    nodes_that_pay,
    outcomes_of,
    probabilities_of,
)
from dart_jax.decoding.tree import scores_of


def random_trees(rng, batch=3, nodes=12):
    """Packed trees, some with unused slots."""
    trees = np.zeros((batch, 4, nodes + 1), np.int32)
    scores = trees[:, 3].view(np.float32)
    trees[:, 0] = rng.integers(0, 9, (batch, nodes + 1))
    for row in range(batch):
        for node in range(1, rng.integers(0, nodes + 1) + 1):
            parent = rng.integers(0, node)
            trees[row, 1:3, node] = parent, trees[row, 2, parent] + 1
            scores[row, node] = scores[row, parent] - rng.exponential(2)
    return trees


def bin_of(tree, node):
    scores, levels, gains = tree[3].view(np.float32), paying._LEVELS, paying._GAINS
    gain = min(int((scores[tree[1, node]] - scores[node]) / paying._WIDTH), gains - 1)
    return gains * (min(tree[2, node], levels) - 1) + gain


@pytest.mark.parametrize("convex", [True, False])
def test_nodes_that_pay_are_the_best_by_brute_force(convex):
    rng = np.random.default_rng(0)
    for _ in range(300):
        nodes = rng.choice([1, 7, 19])
        probabilities = rng.random(nodes) ** rng.integers(1, 5)
        steps = rng.random(nodes) * 0.4
        costs = 1 + np.concatenate([[0], np.cumsum(np.sort(steps) if convex else steps)])
        more = [1 + probabilities[:n].sum() - costs[n] for n in range(nodes + 1)]
        assert nodes_that_pay(probabilities, costs) == np.argmax(more)
        chosen = nodes_that_pay(*(jnp.asarray(x, jnp.float32) for x in (probabilities, costs)))
        assert more[int(chosen)] == pytest.approx(max(more), abs=1e-5)


def test_a_probability_is_the_product_along_the_path():
    rng = np.random.default_rng(1)
    trees, rates = random_trees(rng), rng.random(BINS).astype(np.float32)
    found = np.asarray(probabilities_of(jnp.asarray(trees), jnp.asarray(rates), 12))
    for tree, row in zip(trees, found, strict=True):
        expected = [1.0]
        for node in range(1, tree.shape[1]):
            parent = tree[1, node]
            rate = rates[bin_of(tree, node)] if tree[2, node] else 0.0
            expected.append(expected[parent] * rate)
        np.testing.assert_allclose(row, expected, rtol=1e-5)


def test_outcomes_are_those_of_nodes_whose_parents_were_accepted():
    rng = np.random.default_rng(2)
    trees = random_trees(rng, batch=20)
    ranks, expected = np.zeros((20, 13), np.int32), np.zeros((20, BINS, 2), int)
    counted = rng.random(20) < 0.8
    for row, tree in enumerate(trees):
        end, depth = 0, 0
        while True:
            children = np.flatnonzero((tree[1] == end) & (tree[2] > 0))
            accepted = rng.choice(children) if len(children) and rng.random() < 0.7 else None
            for node in children:
                expected[row, bin_of(tree, node)] += counted[row] * np.array([1, node == accepted])
            if accepted is None:
                break
            ranks[row, depth] = end = accepted
            depth += 1
    found = outcomes_of(jnp.asarray(trees), jnp.asarray(ranks), jnp.asarray(counted))
    np.testing.assert_array_equal(found, expected)


def test_confidence_is_a_part_of_the_score():
    trees = random_trees(np.random.default_rng(3))
    confidence = jnp.asarray(np.random.default_rng(4).random((3, 12)), jnp.float32)
    changed = doubted(jnp.asarray(trees), confidence)
    np.testing.assert_array_equal(changed[:, :3], trees[:, :3])
    logs = np.pad(np.cumsum(np.log(confidence), axis=1), ((0, 0), (1, 0)))
    expected = trees[:, 3].view(np.float32) + np.take_along_axis(logs, trees[:, 2], axis=1)
    np.testing.assert_allclose(scores_of(changed), expected, rtol=1e-5)


def test_the_first_nodes_are_a_tree():
    trees = random_trees(np.random.default_rng(5))
    left = np.asarray(first_nodes(jnp.asarray(trees), jnp.array([0, 3, 12], jnp.int32)))
    assert np.count_nonzero(left[0, 2]) == 0
    np.testing.assert_array_equal(left[1, :, :4], trees[1, :, :4])
    np.testing.assert_array_equal(left[2], trees[2])
