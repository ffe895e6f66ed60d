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

from dart_jax.tree import DraftTree


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


def impose(
    tree: DraftTree, drawn: jax.Array, max_depth: int, start: jax.Array, tau: float
) -> Acceptance:
    """Keeps so many tokens as are asked for, whatever the target thinks of them.

    What is emitted is no text of the target's; the work is the same as if it had agreed. So speed
    can be measured apart from a drafter's quality, and without real weights.

    Every verification ends at a multiple of tau, rounded down, so that any number of them in a row
    emit that many tokens but for one.

    Args:
      tree: the verified tree.
      drawn: int32 [B, N + 1], the target's draw at every node.
      max_depth: deepest level of a tree; P = max_depth + 1, at least tau.
      start: int32 [B], known tokens before the root.
      tau: tokens emitted per verification, bonus included, at least 1; taken to three digits.
    """
    b, nodes = tree.tokens.shape
    chex.assert_shape(start, (b,))
    step = round(1000 * tau)
    # The first multiple of tau that lies a token or more behind the start.
    end = (1000 * (start + 1) + step - 1) // step * step // 1000
    count = jnp.clip(end - start, 1, max_depth + 1)
    path = jnp.minimum(jnp.arange(max_depth + 1, dtype=jnp.int32), nodes - 1)[None]
    path = jnp.where(path < count[:, None], path, 0)
    return Acceptance(path, jnp.take_along_axis(drawn, path, axis=1), count)
