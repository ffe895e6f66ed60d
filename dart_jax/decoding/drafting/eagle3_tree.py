"""EAGLE-3's draft tree, grown level by level on the device (docs/method.md, section 7).

DART drafts all positions in one forward pass; EAGLE-3 runs one forward pass per level and feeds its
own output back. There is no search on the host.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.vocabulary import Vocabulary
from dart_jax.errors import UserError
from dart_jax.models.attention.segments import Prefix, window_start, windowed
from dart_jax.models.cache import Cache, KVCache
from dart_jax.models.networks.draft_layer import take_rows
from dart_jax.models.networks.eagle3 import Eagle3Drafter, Seen


@dataclasses.dataclass(frozen=True)
class Eagle3Tree:
    """Depth and width of EAGLE-3 trees; the defaults are the reference's.

    Attributes:
      depth: forward passes after the first one; every pass, including the first, adds a level.
      top_k: rows per later pass, and tokens that each row proposes; the whole draft vocabulary if
        that is smaller.

    Raises:
      UserError: one of them is below 1.
    """

    depth: int = 7
    top_k: int = 10

    def __post_init__(self) -> None:
        if min(self.depth, self.top_k) < 1:
            raise UserError(
                "depth and top_k of an EAGLE-3 tree must be at least 1, "
                f"got {self.depth} and {self.top_k}"
            )

    @property
    def levels(self) -> int:
        """Levels of a tree: its maximum depth."""
        return self.depth + 1

    def later_passes(self, nodes: int) -> int:
        """Forward passes after the first one: a tree of N nodes has at most N levels."""
        return max(min(self.depth, nodes - 1), 1)


# Changes the log-probabilities, float32 [B, T, Vd], of the tokens after rows of a depth; where
# devices share the drafter, a device's part of them.
Couple = Callable[[jax.Array, jax.Array], jax.Array]


def _as_they_are(log_probs: jax.Array, level: jax.Array) -> jax.Array:
    return log_probs


class _Candidates(NamedTuple):
    """Candidate nodes of the tree, each array [B, candidates].

    Candidates are numbered from 1 in order of creation, over all levels; the root is 0.

    Attributes:
      scores: float32, log-probability of the path from the root.
      tokens: int32, target ids.
      parents: int32, the parents' numbers.
    """

    scores: jax.Array
    tokens: jax.Array
    parents: jax.Array


class _Rows(NamedTuple):
    """State passed from one forward pass to the next.

    Attributes:
      chosen: the newest level's best candidates, [B, k], which become rows.
      numbers: int32 [B, k], their numbers.
      hidden: [B, k, D], their parents' output.
      lineage: bool [B, k, depth * k], the drafted rows that they descend from.
      k: keys of all drafted rows, [B, K, depth * k, h].
      v: their values.
    """

    chosen: _Candidates
    numbers: jax.Array
    hidden: jax.Array
    lineage: jax.Array
    k: jax.Array
    v: jax.Array


def draft_tree(
    settings: Eagle3Tree,
    drafter: Eagle3Drafter,
    embed: Callable[[jax.Array], jax.Array],
    draft_ids: jax.Array,
    features: jax.Array,
    next_tokens: jax.Array,
    positions: jax.Array,
    last: jax.Array,
    nodes: int,
    cache: Cache | None = None,
    length: jax.Array | None = None,
    couple: Couple = _as_they_are,
    best_first: bool = False,
) -> tuple[jax.Array, KVCache]:
    """Drafts a tree after the last real row.

    Ties: of equally likely tokens the smaller draft id wins; of equally likely nodes the one
    created first. So a node's parent is always in the tree.

    Args:
      settings: static.
      drafter: bound to its parameters.
      embed: the embedding that the drafter reads, int32 [B, T] -> [B, T, D].
      draft_ids: int32 [Vd], the target's id of every draft id.
      features: [B, P, 3D], target features of P new real rows.
      next_tokens: int32 [B, P], the token *after* each row; after the last real row it becomes the
        root.
      positions: int32 [B, P].
      last: int32 [B], index of the last real row; rows after it are padding and never seen.
      nodes: tree nodes without the root, N; static. If fewer are drafted, the rest stay unused.
      cache: keys and values of earlier real rows; None for no prefix.
      length: int32 [B], valid rows of the cache.
      couple: see `Couple`.
      best_first: whether to sort the nodes by descending score instead of by depth.

    Returns:
      The packed trees, int32 [B, 4, N + 1] (see `dart_jax.decoding.tree`), and the keys and values
      of the P real rows, to append to the cache. Those of drafted rows are dropped.
    """
    b, p, _ = features.shape
    chex.assert_shape([next_tokens, positions], (b, p))
    chex.assert_shape(last, (b,))
    chex.assert_type([draft_ids, next_tokens, positions, last], jnp.int32)
    # Only a level's best N nodes, and their descendants, can be among the best N overall.
    top_k = min(settings.top_k, draft_ids.shape[0], max(nodes, 1))
    depth = settings.later_passes(nodes)
    propose = functools.partial(_propose, drafter, draft_ids, top_k, couple)

    # Only the last real row proposes tokens; the others only contribute keys and values.
    at = last[:, None]
    hidden = drafter.project(features)
    inputs = drafter.join(embed(next_tokens), hidden)
    k, v = real_rows = drafter.keys_at(inputs, positions)
    real = jnp.arange(p, dtype=jnp.int32)[None] <= at

    def in_window(position: jax.Array) -> tuple[jax.Array | None, Seen, Prefix | None]:
        """What rows at positions int32 [B, R] see: from where on, the new and the cached rows."""
        first = window_start(drafter.config.sliding_window, position)
        newest = k, v, windowed(real[:, None], first, positions)
        return first, newest, Prefix.of(cache, 0, length, first)

    start, root = (jnp.take_along_axis(x, at, axis=1) for x in (positions, next_tokens))
    _, newest, prefix = in_window(start)
    hidden = drafter(take_rows(hidden, at), take_rows(inputs, at), start, [newest], prefix)
    root_score = jnp.zeros((b, 1), jnp.float32)
    first = propose(jnp.int32(0), hidden, root_score, jnp.zeros_like(at))

    row = jnp.arange(top_k, dtype=jnp.int32)
    slot = jnp.arange(depth * top_k, dtype=jnp.int32)  # one per drafted row

    def grow(rows: _Rows, level: jax.Array) -> tuple[_Rows, _Candidates]:
        """Runs the chosen rows and selects the best of the candidates they propose."""
        inputs = drafter.join(embed(rows.chosen.tokens), rows.hidden)
        # The rows of a level share a position and do not see each other.
        position = jnp.broadcast_to(start + level, (b, top_k))
        first, newest, prefix = in_window(position)
        own = (level - 1) * top_k + row
        k, v = (
            jax.lax.dynamic_update_slice_in_dim(old, new, own[0], axis=2)
            for old, new in zip((rows.k, rows.v), drafter.keys_at(inputs, position), strict=True)
        )
        lineage = rows.lineage | (slot[None] == own[:, None])[None]
        seen = k, v, windowed(lineage, first, start + 1 + slot[None] // top_k)
        hidden = drafter(rows.hidden, inputs, position, [newest, seen], prefix)
        proposed = propose(level, hidden, rows.chosen.scores, rows.numbers)

        _, best = jax.lax.top_k(proposed.scores, top_k)
        parent = best // top_k
        chosen = _Candidates(*(jnp.take_along_axis(x, best, axis=1) for x in proposed))
        numbers = 1 + top_k + (level - 1) * top_k**2 + best
        hidden, lineage = take_rows(hidden, parent), take_rows(lineage, parent)
        return _Rows(chosen, numbers, hidden, lineage, k, v), proposed

    empty = jnp.zeros((*k.shape[:2], slot.size, k.shape[3]), k.dtype)
    rows = _Rows(
        chosen=first,
        numbers=jnp.broadcast_to(1 + row[None], (b, top_k)),
        hidden=jnp.broadcast_to(hidden, (b, top_k, hidden.shape[2])),
        lineage=jnp.zeros((b, top_k, slot.size), bool),
        k=empty,
        v=empty,
    )
    # Unrolled, the loop takes nearly three times as long to compile and runs no faster on a CPU.
    _, later = jax.lax.scan(grow, rows, jnp.arange(1, depth + 1, dtype=jnp.int32))

    def pooled(first: jax.Array, later: jax.Array) -> jax.Array:
        return jnp.concatenate([first, later.swapaxes(0, 1).reshape(b, -1)], axis=1)

    pool = jax.tree.map(pooled, first, later)
    levels = np.repeat(np.arange(depth + 1) + 1, [top_k] + depth * [top_k**2])
    trees = _pack(pool, jnp.asarray(levels, jnp.int32), root, nodes, best_first)
    return trees, (real_rows,)


def _propose(
    drafter: Eagle3Drafter,
    draft_ids: jax.Array,
    top_k: int,
    couple: Couple,
    level: jax.Array,
    hidden: jax.Array,
    scores: jax.Array,
    numbers: jax.Array,
) -> _Candidates:
    """Proposes the top-k next tokens of each of T rows, row by row: [B, T * k].

    Args:
      drafter: computes the probabilities.
      draft_ids: int32 [Vd].
      top_k: tokens per row.
      couple: see `Couple`.
      level: int32 scalar, the rows' depth.
      hidden: [B, T, D], the layer's output.
      scores: float32 [B, T], the rows' scores.
      numbers: int32 [B, T], the rows' numbers.
    """
    vocabulary = Vocabulary(drafter.options.shards)
    log_probs = vocabulary.log_softmax(drafter.logits(hidden))
    log_probs, ids = vocabulary.top_k(couple(log_probs, level), top_k)
    tokens = jnp.take(draft_ids, ids).reshape(ids.shape[0], -1)
    return _Candidates(
        scores=(scores[:, :, None] + log_probs).reshape(tokens.shape),
        tokens=tokens,
        parents=jnp.repeat(numbers, top_k, axis=1),
    )


def _pack(
    pool: _Candidates, depth: jax.Array, root: jax.Array, nodes: int, best_first: bool
) -> jax.Array:
    """Packs the root and the best N candidates.

    Args:
      pool: candidates of all levels.
      depth: int32 [candidates], their levels.
      root: int32 [B, 1].
      nodes: N.
      best_first: sort by score, otherwise by creation; parents precede their children in both.
    """
    scores, best = jax.lax.top_k(pool.scores, min(nodes, depth.size))
    if not best_first:
        best = jnp.sort(best, axis=1)
        scores = jnp.take_along_axis(pool.scores, best, axis=1)
    tokens, parents = (jnp.take_along_axis(x, best, axis=1) for x in (pool.tokens, pool.parents))
    # The candidate of index i has the number i + 1. No place has the root's, 0.
    place = jnp.arange(1, best.shape[1] + 1, dtype=jnp.int32)
    same = best[:, None, :] + 1 == parents[:, :, None]
    parents = jnp.sum(jnp.where(same, place, 0), axis=2, dtype=jnp.int32)
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    tree = jnp.stack([tokens, parents, jnp.take(depth, best), bits], axis=1)
    tree = jnp.pad(tree, ((0, 0), (0, 0), (1, nodes - best.shape[1])))
    return tree.at[:, 0, :1].set(root)
