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
