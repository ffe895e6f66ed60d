"""Which nodes of draft trees pay: probabilities and costs in, nodes out (docs/method.md, section
5).

A node's score less its parent's, its *gain*, says how likely it is to be accepted if its parent
is. How likely, is counted: nodes are put into bins by level and gain, and every verified node whose
parent was accepted is an observation of its bin. A node's probability is the product along its
path.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.tree import ancestor_mask, scores_of, unpack, with_scores

# Levels that have bins of their own, the last one with all deeper ones; a level's bins of gains, of
# which the last one has all that are worse; and their width.
_LEVELS, _GAINS, _WIDTH = 3, 32, 0.25
BINS = _LEVELS * _GAINS

# Steps after which the numbers of nodes that are timed begin again.
NUMBERS = 12

AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)


class Paying(NamedTuple, Generic[AnyArray]):
    """Knowledge of a burst about its trees.

    Attributes:
      rates: float32 [BINS], shares of the nodes of each bin that are accepted if their parents are.
      costs: float32 [N + 1], of a step by the nodes that it verifies: the tokens that steps usually
        emit in its time; ones where all nodes pay.
      numbers: int32 [NUMBERS], of nodes that steps verify in turn, to be timed; -1 for as many as
        pay.
    """

    rates: AnyArray
    costs: AnyArray
    numbers: AnyArray

    @staticmethod
    def all(nodes: int) -> Paying[np.ndarray]:
        """Of trees all of whose N nodes pay."""
        costs = np.ones(nodes + 1, np.float32)
        return Paying(prior_rates(), costs, np.full(NUMBERS, -1, np.int32))


class Lessons(NamedTuple, Generic[AnyArray]):
    """Evidence of a burst about its drafts.

    Attributes:
      outcomes: int32 [n, BINS, 2], see `outcomes_of`.
      expected: float32 [n, N + 1], sums over all trees of the probabilities of verified nodes, by
        place; the root's count the trees.
    """

    outcomes: AnyArray
    expected: AnyArray

    def plus(
        self: Lessons[jax.Array], outcomes: jax.Array, expected: jax.Array, drafted: jax.Array
    ) -> Lessons[jax.Array]:
        """Adds a step.

        Args:
          outcomes: int32 [n, BINS, 2].
          expected: float32 [n, N + 1], probabilities of the nodes that were verified.
          drafted: bool [n], rows with trees.
        """
        expected = jnp.where(drafted[:, None], expected, 0)
        return Lessons(self.outcomes + outcomes, self.expected + expected)


def prior_rates() -> np.ndarray:
    """Returns rates for a drafter of which nothing is known, float32 [BINS]: about smollm2's."""
    gain = -_WIDTH * (np.arange(_GAINS, dtype=np.float32) + 0.5)
    return np.tile(1 / (1 + np.exp(-1.9 - 1.9 * gain)), _LEVELS)


def nodes_that_pay(probabilities: AnyArray, costs: AnyArray) -> AnyArray:
    """Returns how many of a tree's first nodes give the most expected tokens beyond what their time
    usually gives: over many steps, that gives the most tokens in all.

    Args:
      probabilities: float [..., N], of the nodes: that they and all before them in their paths are
        accepted.
      costs: float [N + 1], see `Paying`.

    Returns:
      int [...], the smallest of equally good numbers.
    """
    tokens: Any = tokens_of(probabilities)
    return (tokens - costs[(None,) * (tokens.ndim - 1)]).argmax(-1)


def tokens_of(probabilities: AnyArray) -> AnyArray:
    """Returns the tokens expected of a step with the first 0 to N nodes, [..., N + 1]."""
    xp = probabilities.__array_namespace__()
    ones = xp.ones_like(probabilities[..., :1])
    return xp.cumsum(xp.concatenate([ones, probabilities], axis=-1), axis=-1)


def doubted(trees: jax.Array, confidence: jax.Array) -> jax.Array:
    """Packed trees whose scores have the logarithms of a drafter's confidence added, float32
    [B, d], by position."""
    levels = jnp.cumsum(jnp.log(jnp.maximum(confidence, 1e-6)), axis=1)
    levels = jnp.pad(levels, ((0, 0), (1, 0)))
    return with_scores(trees, scores_of(trees) + jnp.take_along_axis(levels, trees[:, 2], axis=1))


def probabilities_of(trees: jax.Array, rates: jax.Array | None, max_depth: int) -> jax.Array:
    """Returns the probabilities of packed trees' nodes, float32 [B, N + 1]: 1 for the root, 0 for
    unused slots; without rates, what the scores say."""
    tree, paths = unpack(trees), scores_of(trees)
    if rates is not None:
        logs = jnp.where(tree.real, jnp.log(jnp.take(rates, _bins(trees))), 0)
        paths = jnp.sum(jnp.where(ancestor_mask(tree, max_depth), logs[:, None], 0), axis=2)
    root = jnp.arange(paths.shape[1], dtype=jnp.int32)[None] == 0
    return jnp.where(tree.real | root, jnp.exp(paths), 0)


def outcomes_of(trees: jax.Array, ranks: jax.Array, counts: jax.Array) -> jax.Array:
    """Counts what became of verified nodes whose parents were accepted.

    Args:
      trees: packed; only the verified nodes.
      ranks: int32 [B, P], places of the accepted ones; 0 is the root's.
      counts: bool [B], the rows that count.

    Returns:
      int32 [B, BINS, 2]: how many there were in each bin, and how many of them were accepted.
    """
    tree = unpack(trees)
    place = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)[None]
    accepted = (place == 0) | jnp.any(ranks[:, :, None] == place[:, None], axis=1)
    tried = tree.real & jnp.take_along_axis(accepted, tree.parents, axis=1) & counts[:, None]
    of_bin = _bins(trees)[..., None] == jnp.arange(BINS, dtype=jnp.int32)[None, None]
    new = jnp.stack([tried, tried & accepted], axis=-1)
    return jnp.sum((of_bin[..., None] & new[:, :, None]).astype(jnp.int32), axis=1)


def first_nodes(trees: jax.Array, nodes: jax.Array) -> jax.Array:
    """Leaves out nodes beyond the first ones, int32 [B], which are a tree: nodes come after their
    parents."""
    place = jnp.arange(trees.shape[2], dtype=jnp.int32)[None, None]
    return jnp.where(place <= nodes[:, None, None], trees, 0)


def _bins(trees: jax.Array) -> jax.Array:
    """Returns the nodes' bins, int32 [B, N + 1]."""
    scores = scores_of(trees)
    gains = scores - jnp.take_along_axis(scores, trees[:, 1], axis=1)
    level = jnp.clip(trees[:, 2] - 1, 0, _LEVELS - 1)
    return _GAINS * level + jnp.clip(-gains / _WIDTH, 0, _GAINS - 1).astype(jnp.int32)
