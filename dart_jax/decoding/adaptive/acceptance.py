"""How likely the target is to accept each node of a draft tree, learned from what it accepted.

Nodes are ranked by their scores, so the n-th node of every tree is about as promising. The share of
n-th nodes that were accepted is a calibrated probability for the average tree; a node whose score
is above its rank's average is more likely to be accepted, and one below less.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Part of the earlier evidence that is kept from step to step: about 50 steps count.
_KEPT = 0.98

# What is believed before the first step, as if it had been seen in so many steps: that the n-th
# node is accepted in 0.7 / n of them.
_PRIOR_STEPS = 4.0
_PRIOR_RATE = 0.7

# Log-odds per unit of score. With this number as with a learned one, the demo's drafts are almost
# equally well predicted, for every method and temperature.
_SLOPE = 0.75


class AcceptanceRates(NamedTuple):
    """What was accepted lately, by rank: each float32 [N + 1]; the root's entries are unused.

    Attributes:
      accepted: number of accepted nodes.
      known: number of nodes of which it is known whether they were.
      score: mean of their scores.
    """

    accepted: jax.Array
    known: jax.Array
    score: jax.Array

    @classmethod
    def prior(cls, nodes: int) -> AcceptanceRates:
        """What is believed before the first step."""
        rank = np.maximum(np.arange(nodes + 1, dtype=np.float32), 1)
        known = np.full(nodes + 1, _PRIOR_STEPS, np.float32)
        return cls(*map(jnp.asarray, (known * _PRIOR_RATE / rank, known, -np.log2(1 + rank))))


def expected(rates: AcceptanceRates, trees: jax.Array, scores: jax.Array) -> jax.Array:
    """Returns the probability of each node to be accepted, float32 [B, N + 1]; 0 for the root and
    unused slots.

    Args:
      rates: what was accepted lately.
      trees: int32 [B, 3, N + 1], packed; nodes by descending score.
      scores: float32 [B, N + 1], the nodes'.
    """
    rate = jnp.clip(rates.accepted / rates.known, 1e-3, 1 - 1e-3)
    odds = jnp.log(rate / (1 - rate))[None] + _SLOPE * (scores - rates.score[None])
    return jnp.where(trees[:, 2] > 0, jax.nn.sigmoid(odds), 0)


def learn(
    rates: AcceptanceRates,
    trees: jax.Array,
    scores: jax.Array,
    tokens: jax.Array,
    count: jax.Array,
) -> AcceptanceRates:
    """Learns from the nodes of all ranks, verified or not.

    The emitted tokens tell of each node down to their number whether it was or would have been
    accepted, and of each node below one that was not that it was not either.

    Args:
      rates: what was accepted before.
      trees: int32 [B, 3, N + 1].
      scores: float32 [B, N + 1].
      tokens: int32 [B, P], the emitted tokens, the bonus token included.
      count: int32 [B], how many; 0 in rows to ignore.
    """
    token, parent, depth = trees[:, 0], trees[:, 1], trees[:, 2]
    drawn = jnp.take_along_axis(tokens, jnp.maximum(depth - 1, 0), axis=1)
    reached = depth <= count[:, None]
    path = (depth == 0) | ~reached | (token == drawn)
    above = parent
    for _ in range((tokens.shape[1] - 1).bit_length()):
        path = path & jnp.take_along_axis(path, above, axis=1)
        above = jnp.take_along_axis(above, above, axis=1)
    known = (depth > 0) & (reached | ~path) & (count > 0)[:, None]

    def add(old: jax.Array, new: jax.Array) -> jax.Array:
        return _KEPT * old + jnp.sum(new, axis=0, dtype=jnp.float32)

    number = add(rates.known, known)
    total = add(rates.known * rates.score, jnp.where(known, scores, 0))
    return AcceptanceRates(add(rates.accepted, known & path), number, total / number)
