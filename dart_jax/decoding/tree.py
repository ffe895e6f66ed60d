"""Draft trees of static size.

A tree has a root, the last token of the sequence, and N nodes. Node 0 is the root; real nodes
follow, parents first; unused slots have depth 0. For example, the tree

    the -+- cat --- sat        node     0    1    2    3    4
         +- dog                token    the  cat  dog  sat  -
                               parent   0    0    0    1    0
                               depth    0    1    1    2    0

has this ancestor mask (row sees column), with which one forward pass scores all paths:

    the  1 . . . .
    cat  1 1 . . .
    dog  1 . 1 . .
    sat  1 1 . 1 .
    -    1 . . . 1
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Numbers of each node in a packed tree: token, parent, depth, and the bits of its score.
TREE_ROWS = 4


class DraftTree(NamedTuple):
    """Node arrays, each int32 [B, N + 1].

    Attributes:
      tokens: target ids.
      parents: node indices; the root's is its own.
      depth: distance from the root; 0 for the root and for unused slots.
    """

    tokens: jax.Array
    parents: jax.Array
    depth: jax.Array

    @property
    def real(self) -> jax.Array:
        """Bool [B, N + 1]: drafted nodes, excluding the root and unused slots."""
        return self.depth > 0


def unpack(packed: jax.Array) -> DraftTree:
    """Unpacks a tree, int32 [B, 4, N + 1], as the search returns it."""
    return DraftTree(packed[:, 0], packed[:, 1], packed[:, 2])


def scores_of(packed: jax.Array) -> jax.Array:
    """Returns the scores in packed trees, float32 [B, N + 1]: a log-probability of each node's path
    or what takes its place, descending along it; 0 for the root and unused slots."""
    return jax.lax.bitcast_convert_type(packed[:, 3], jnp.float32)


def with_scores(packed: jax.Array, scores: jax.Array) -> jax.Array:
    """Packed trees, int32 [B, 3, N + 1], or 4 in place of 3, with other scores."""
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    return jnp.concatenate([packed[:, :3], bits[:, None]], axis=1)


def root_only(tokens: jax.Array) -> DraftTree:
    """Trees of plain decoding, N = 0, from root tokens int32 [B]."""
    zero = jnp.zeros_like(tokens)[:, None]
    return DraftTree(tokens[:, None], zero, zero)


def with_unused(tree: DraftTree, nodes: int) -> DraftTree:
    """Adds unused slots until there are at least `nodes`, the root included."""
    more = max(nodes - tree.tokens.shape[1], 0)
    return DraftTree(*(jnp.pad(x, ((0, 0), (0, more))) for x in tree))


def unused_as_root(tree: DraftTree, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the tokens [B, N + 1] and the mask with which unused slots compute what the root
    does: a mixture of experts then reads no experts for them.

    Args:
      tree: the trees.
      mask: their `ancestor_mask`.
    """
    real = tree.real
    tokens = jnp.where(real, tree.tokens, tree.tokens[:, :1])
    return tokens, jnp.where(real[:, :, None], mask, mask[:, :1])


def chain(
    root: jax.Array, tokens: jax.Array, count: jax.Array, scores: jax.Array | None = None
) -> jax.Array:
    """Packs chains, trees in which every node has one child: int32 [B, 4, N + 1].

    Args:
      root: int32 [B, 1].
      tokens: int32 [B, N], each the child of the one before.
      count: int32 [B], how many of them are real nodes.
      scores: float32 [B, N], see `scores_of`; by default 0.
    """
    b, n = tokens.shape
    scores = jnp.zeros((b, n), jnp.float32) if scores is None else scores
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    depth = jnp.broadcast_to(jnp.arange(1, n + 1, dtype=jnp.int32)[None], (b, n))
    nodes = jnp.stack([tokens, depth - 1, depth, bits], axis=1)
    nodes = jnp.where((depth <= count[:, None])[:, None], nodes, 0)
    first = jnp.pad(root[:, None], ((0, 0), (0, TREE_ROWS - 1), (0, 0)))
    return jnp.concatenate([first, nodes], axis=2)


def ancestor_mask(tree: DraftTree, max_depth: int) -> jax.Array:
    """Returns the mask of each node's ancestors, itself included: bool [B, N + 1, N + 1].

    Pointer jumping: after r rounds a row holds its nearest 2**r ancestors.
    """
    nodes = tree.parents.shape[1]
    mask = jnp.eye(nodes, dtype=bool)[None]
    mask = mask | jax.nn.one_hot(tree.parents, nodes, dtype=bool)
    jump = tree.parents
    for _ in range((max(max_depth, 1) - 1).bit_length()):
        mask = mask | jnp.take_along_axis(mask, jump[:, :, None], axis=1)
        jump = jnp.take_along_axis(jump, jump, axis=1)
    return mask
