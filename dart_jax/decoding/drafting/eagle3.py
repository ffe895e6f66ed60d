"""EAGLE-3: grows the tree level by level on the device (docs/method.md, section 7).

DART drafts all positions in one forward pass; EAGLE-3 runs one forward pass per level and feeds its
own output back. There is no search.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.drafting.base import (
    DraftingMethod,
    DraftInput,
    PromptRows,
    Proposal,
    coupled,
)
from dart_jax.decoding.sampling import Noise
from dart_jax.decoding.vocabulary import Vocabulary
from dart_jax.errors import UserError
from dart_jax.models.attention.compaction import extend, keep_rows
from dart_jax.models.attention.segments import Prefix, window_start, windowed
from dart_jax.models.cache import Cache, KVCache, order_after
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.networks.draft_layer import take_rows
from dart_jax.models.networks.eagle3 import Eagle3Drafter, Seen
from dart_jax.models.networks.pure import bind


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


@dataclasses.dataclass(frozen=True)
class Eagle3(DraftingMethod):
    """Drafts with an EAGLE-3 drafter (see the base class); `draft_state` is its KV cache.

    Attributes:
      tree: depth and width of the trees.
    """

    config: Eagle3Config
    nodes: int
    tree: Eagle3Tree

    @property
    def depth(self) -> int:
        """Maximum depth of a tree."""
        return min(self.tree.levels, self.nodes)

    def read(self, draft_state: Cache, rows: PromptRows) -> Cache:
        """Reads rows of the prompts; see the base class."""
        drafter = bind(self.config, rows.params["drafter"], rows.options)
        embeds = drafter.embedding(rows.target.embed)(rows.next_tokens)
        inputs = drafter.join(embeds, drafter.project(rows.features))
        read = (drafter.keys_at(inputs, rows.positions),)
        return keep_rows(draft_state, read, rows.start, rows.options.attention)

    def __call__(self, draft_state: Cache, inputs: DraftInput) -> tuple[Cache, Proposal]:
        """Drafts; see the base class."""
        drafter = bind(self.config, inputs.params["drafter"], inputs.options)
        trees, rows = draft_tree(self.tree, drafter, inputs, self.nodes, draft_state)
        start = order_after(trees, inputs.start)
        return extend(draft_state, rows, start, inputs.options.attention), Proposal(trees)


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
    settings: Eagle3Tree, drafter: Eagle3Drafter, inputs: DraftInput, nodes: int, cache: Cache
) -> tuple[jax.Array, KVCache]:
    """Drafts a tree of N nodes after the last real row; if fewer are drafted, the rest are unused.

    Of equally likely tokens the smaller draft id wins; of equally likely nodes the one created
    first. So a node's parent is always in the tree.

    Args:
      settings: static.
      drafter: bound to its parameters.
      inputs: rows to draft from.
      nodes: N; static.
      cache: keys and values of the rows before these.

    Returns:
      The packed trees, int32 [B, 4, N + 1] (see `dart_jax.decoding.tree`), by descending score; and
      the keys and values of the P real rows, to append to the cache.
    """
    features, next_tokens, positions = inputs.features, inputs.next_tokens, inputs.positions
    draft_ids, embed = inputs.params["draft_ids"], drafter.embedding(inputs.target.embed)
    b, p, _ = features.shape
    # Only a level's best N nodes, and their descendants, can be among the best N overall.
    top_k = min(settings.top_k, draft_ids.shape[0], max(nodes, 1))
    depth = settings.later_passes(nodes)
    noise = inputs.noise
    if noise is not None:
        noise = noise.made(min(settings.levels, nodes), inputs.target.config.vocab_size)
    propose = functools.partial(_propose, drafter, inputs, top_k, noise)

    # Only the last real row proposes tokens; the others only contribute keys and values.
    at = inputs.last[:, None]
    hidden = drafter.project(features)
    joined = drafter.join(embed(next_tokens), hidden)
    k, v = real_rows = drafter.keys_at(joined, positions)
    real = jnp.arange(p, dtype=jnp.int32)[None] <= at

    def in_window(position: jax.Array) -> tuple[jax.Array | None, Seen, Prefix | None]:
        """What rows at positions int32 [B, R] see: from where on, the new and the cached rows."""
        first = window_start(drafter.config.sliding_window, position)
        newest = k, v, windowed(real[:, None], first, positions)
        return first, newest, Prefix.of(cache, 0, inputs.start, first)

    start, root = (jnp.take_along_axis(x, at, axis=1) for x in (positions, next_tokens))
    _, newest, prefix = in_window(start)
    hidden = drafter(take_rows(hidden, at), take_rows(joined, at), start, [newest], prefix)
    root_score = jnp.zeros((b, 1), jnp.float32)
    first = propose(jnp.int32(0), hidden, root_score, jnp.zeros_like(at))

    row = jnp.arange(top_k, dtype=jnp.int32)
    slot = jnp.arange(depth * top_k, dtype=jnp.int32)  # one per drafted row

    def grow(rows: _Rows, level: jax.Array) -> tuple[_Rows, _Candidates]:
        """Runs the chosen rows and selects the best of the candidates they propose."""
        joined = drafter.join(embed(rows.chosen.tokens), rows.hidden)
        # The rows of a level share a position and do not see each other.
        position = jnp.broadcast_to(start + level, (b, top_k))
        first, newest, prefix = in_window(position)
        own = (level - 1) * top_k + row
        k, v = (
            jax.lax.dynamic_update_slice_in_dim(old, new, own[0], axis=2)
            for old, new in zip((rows.k, rows.v), drafter.keys_at(joined, position), strict=True)
        )
        lineage = rows.lineage | (slot[None] == own[:, None])[None]
        seen = k, v, windowed(lineage, first, start + 1 + slot[None] // top_k)
        hidden = drafter(rows.hidden, joined, position, [newest, seen], prefix)
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
    trees = _pack(pool, jnp.asarray(levels, jnp.int32), root, nodes)
    return trees, (real_rows,)


def _propose(
    drafter: Eagle3Drafter,
    inputs: DraftInput,
    top_k: int,
    noise: Noise | None,
    level: jax.Array,
    hidden: jax.Array,
    scores: jax.Array,
    numbers: jax.Array,
) -> _Candidates:
    """Proposes the top-k next tokens of each of T rows, row by row: [B, T * k].

    Args:
      drafter: computes the probabilities.
      inputs: has the draft vocabulary, and how the target samples.
      top_k: tokens per row.
      noise: with which they are ranked.
      level: int32 scalar, the rows' depth.
      hidden: [B, T, D], the layer's output.
      scores: float32 [B, T], the rows' scores.
      numbers: int32 [B, T], the rows' numbers.
    """
    draft_ids, vocabulary = inputs.params["draft_ids"], Vocabulary(drafter.options.shards)
    log_probs = vocabulary.log_softmax(drafter.logits(hidden))
    if noise is not None:
        table = noise.at(level).table
        assert table is not None
        log_probs = coupled(inputs, log_probs, draft_ids, table, vocabulary)
        log_probs = vocabulary.log_softmax(log_probs)
    log_probs, ids = vocabulary.top_k(log_probs, top_k)
    tokens = jnp.take(draft_ids, ids).reshape(ids.shape[0], -1)
    return _Candidates(
        scores=(scores[:, :, None] + log_probs).reshape(tokens.shape),
        tokens=tokens,
        parents=jnp.repeat(numbers, top_k, axis=1),
    )


def _pack(pool: _Candidates, depth: jax.Array, root: jax.Array, nodes: int) -> jax.Array:
    """Packs the root, int32 [B, 1], and the best N candidates of all levels, int32 [candidates]."""
    scores, best = jax.lax.top_k(pool.scores, min(nodes, depth.size))
    tokens, parents = (jnp.take_along_axis(x, best, axis=1) for x in (pool.tokens, pool.parents))
    # The candidate of index i has the number i + 1. No place has the root's, 0.
    place = jnp.arange(1, best.shape[1] + 1, dtype=jnp.int32)
    same = best[:, None, :] + 1 == parents[:, :, None]
    parents = jnp.sum(jnp.where(same, place, 0), axis=2, dtype=jnp.int32)
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    tree = jnp.stack([tokens, parents, jnp.take(depth, best), bits], axis=1)
    tree = jnp.pad(tree, ((0, 0), (0, 0), (1, nodes - best.shape[1])))
    return tree.at[:, 0, :1].set(root)
