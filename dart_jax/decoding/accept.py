"""Lossless acceptance: the target draws one token at every node, and the tree is walked by them.

A node is accepted when its token is what the target drew at its parent and the parent is accepted
(docs/method.md, section 5). Since a draw depends on the logits and on its absolute position alone,
the walk emits exactly what decoding without a tree would have drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dart_jax.decoding.tree import DraftTree


class Acceptance(NamedTuple):
    """The longest path the target agrees with.

    Attributes:
      path: int32 [B, P], nodes from the root down; entries past the path's end are 0.
      tokens: int32 [B, P], what the target drew at those nodes: the accepted tokens, then the
        bonus token; entries past `count` mean nothing.
      count: int32 [B], tokens won, bonus included: 1..P.
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
      max_depth: deepest level a node may have; P = max_depth + 1.
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
    """Keeps so many tokens as are asked for, whatever the target thinks of them.

    What is emitted is no text of the target's; the work is the same as if it had agreed. So speed
    can be measured apart from a drafter's quality, and without real weights.

    Behind every verification a multiple of tau is left, rounded down; only the first of a sequence
    may be longer or shorter than that, by chance, so that many sequences make up for it.

    Args:
      tree: the verified tree.
      drawn: int32 [B, N + 1], the target's draw at every node.
      max_depth: deepest level of a tree; P = max_depth + 1, at least tau.
      remaining: int32 [B], tokens still to be emitted.
      end: int32 [B], the same in all steps of a sequence; decides on its chance.
      tau: tokens emitted per verification, bonus included, at least 1; taken to three digits.
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
    path = jnp.minimum(jnp.arange(max_depth + 1, dtype=jnp.int32), nodes - 1)[None]
    path = jnp.where(path < count[:, None], path, 0)
    return Acceptance(path, jnp.take_along_axis(drawn, path, axis=1), count)
