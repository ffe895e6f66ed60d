"""Lossless acceptance: the target draws one token at every node, and accepts the path they follow.

A node is accepted if its parent is accepted and its token is the one the target drew at the parent
(docs/method.md, section 5). A draw depends only on the logits and on its absolute position, so the
emitted tokens are exactly those of plain decoding.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dart_jax.decoding.tree import DraftTree


class Acceptance(NamedTuple):
    """The longest path that agrees with the target, as indices into the tree.

    `step.AcceptedPath` holds the rows at these indices.

    Attributes:
      path: int32 [B, P], node indices from the root down; entries past the path's end are 0.
      tokens: int32 [B, P], the target's draws at those nodes: the accepted tokens, then the bonus
        token; entries past `count` are undefined.
      count: int32 [B], emitted tokens, bonus token included: 1..P.
    """

    path: jax.Array
    tokens: jax.Array
    count: jax.Array


def accept(tree: DraftTree, mask: jax.Array, drawn: jax.Array, max_depth: int) -> Acceptance:
    """Finds the accepted path.

    Args:
      tree: the verified tree.
      mask: its `ancestor_mask`.
      drawn: int32 [B, N + 1], the target's draw at every node.
      max_depth: maximum depth of a node; P = max_depth + 1.
    """
    b, nodes = tree.tokens.shape
    chex.assert_shape([*tree, drawn], (b, nodes))
    chex.assert_shape(mask, (b, nodes, nodes))
    agrees = tree.tokens == jnp.take_along_axis(drawn, tree.parents, axis=1)
    root = jnp.arange(nodes, dtype=jnp.int32)[None] == 0
    agrees = root | (tree.real & agrees)
    accepted = jnp.all(~mask | agrees[:, None], axis=2)
    levels = jnp.arange(max_depth + 1, dtype=jnp.int32)[None, :, None]
    on_level = accepted[:, None] & (tree.depth[:, None] == levels)
    path = jnp.argmax(on_level, axis=2).astype(jnp.int32)
    count = jnp.sum(jnp.any(on_level, axis=2), axis=1, dtype=jnp.int32)
    return Acceptance(path, jnp.take_along_axis(drawn, path, axis=1), count)


def impose_tau(
    tree: DraftTree,
    drawn: jax.Array,
    max_depth: int,
    remaining: jax.Array,
    end: jax.Array,
    tau: float,
) -> Acceptance:
    """Accepts `tau` tokens per verification on average, whether or not the target agrees.

    The emitted text is not the target's, but the work is the same as if it had agreed. This
    measures speed independently of a drafter's quality, and without real weights.

    After every verification the number of remaining tokens is a multiple of tau, rounded down.
    Only the first verification of a sequence may emit more or fewer, pseudo-randomly, so that the
    average over many sequences is tau. Where nothing is drafted, as in a text's first step, one
    token is emitted.

    Args:
      tree: the verified tree.
      drawn: int32 [B, N + 1], the target's draw at every node.
      max_depth: maximum depth of a tree; P = max_depth + 1, at least tau.
      remaining: int32 [B], tokens still to be emitted.
      end: int32 [B], the same in all steps of a sequence; seeds its pseudo-random choice.
      tau: tokens emitted per verification, bonus token included, at least 1; rounded to three
        decimal places.
    """
    b, nodes = tree.tokens.shape
    chex.assert_shape([remaining, end], (b,))
    step = round(1000 * tau)
    steps = -(-1000 * remaining // step)
    multiple = steps * step // 1000 == remaining
    more = (1000 * remaining - (steps - 1) * step).astype(jnp.float32) / step
    hashed = (end.astype(jnp.uint32) * jnp.uint32(2654435761)) >> jnp.uint32(16)
    chance = hashed.astype(jnp.float32) / 65536
    steps = jnp.maximum(jnp.where(multiple | (chance < more), steps, steps - 1), 1)
    count = jnp.clip(remaining - (steps - 1) * step // 1000, 1, max_depth + 1)
    count = jnp.where(jnp.any(tree.real[:, 1:], axis=1), count, 1)
    path = jnp.minimum(jnp.arange(max_depth + 1, dtype=jnp.int32), nodes - 1)[None]
    path = jnp.where(path < count[:, None], path, 0)
    return Acceptance(path, jnp.take_along_axis(drawn, path, axis=1), count)
