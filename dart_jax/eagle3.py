"""EAGLE-3 (docs/method.md, section 7): a drafter that grows its draft tree level by level.

DART drafts all positions in one forward; EAGLE-3 runs one forward a level and feeds its own output
back. All of it runs on the device: there is no search on the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.cache import KVCache, visible
from dart_jax.config import Eagle3Config
from dart_jax.draft_layer import DraftLayer, take_rows
from dart_jax.errors import UserError
from dart_jax.layers import Linear, Part, split_heads
from dart_jax.rope import rotate

# What a forward over T rows attends to: keys and values [B, K, S, h], and which of them each row
# sees, a mask broadcastable to [B, T, S].
Seen = tuple[jax.Array, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Eagle3Tree:
    """How deep and how wide trees are drafted; the defaults are the reference's.

    Attributes:
      depth: forwards that follow the first one. Each makes a level, as the first one does.
      top_k: rows of such a forward, and tokens that each row proposes; the whole draft vocabulary
        where that is smaller.

    Raises:
      UserError: a negative `depth`, or a `top_k` below 1.
    """

    depth: int = 7
    top_k: int = 10

    def __post_init__(self) -> None:
        if self.depth < 0 or self.top_k < 1:
            raise UserError(
                "an EAGLE-3 tree needs a depth of at least 0 and a top_k of at least 1, "
                f"got {self.depth} and {self.top_k}"
            )

    @property
    def levels(self) -> int:
        """Levels of a tree, its greatest depth."""
        return self.depth + 1


class Eagle3Drafter(DraftLayer):
    """One decoder layer; the head is over the draft vocabulary.

    A row joins what is known about a position with the embedding of the token after it. Where that
    token follows known ones it is the target's projected feature, behind a drafted token the
    layer's own output.
    """

    def __init__(self, config: Eagle3Config, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        d = config.hidden_size
        self.fc = Linear(3 * config.target_hidden_size, d, dtype=dtype, rngs=rngs)
        super().__init__(config, dtype=dtype, rngs=rngs)

    def keys(self, inputs: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, K, T, h] of rows [B, T, 2D] at int32 positions [B, T]."""
        k = split_heads(self.k_proj(inputs), self.config.num_key_value_heads)
        v = split_heads(self.v_proj(inputs), self.config.num_key_value_heads)
        return rotate(k, positions, self.config.rope), v

    def __call__(
        self, hidden: jax.Array, inputs: jax.Array, positions: jax.Array, seen: Sequence[Seen]
    ) -> jax.Array:
        """Runs the layer over T rows.

        Args:
          hidden: [B, T, D], the residual stream: `fc(features)`, or the parents' output.
          inputs: [B, T, 2D], `join` of the tokens' embeddings and `hidden`.
          positions: int32 [B, T].
          seen: what the rows attend to, themselves included.

        Returns:
          [B, T, D], before the final norm.
        """
        q = split_heads(self.q_proj(inputs), self.config.num_attention_heads)
        q = rotate(q, positions, self.config.rope)
        return self.finish(hidden, [Part(q, *rows) for rows in seen])

    def log_probs(self, hidden: jax.Array) -> jax.Array:
        """Of the token that follows each row's: [B, T, D] -> float32 [B, T, Vd]."""
        logits = self.lm_head(self.norm(hidden)).astype(jnp.float32)
        return jax.nn.log_softmax(logits, axis=-1)


class _Candidates(NamedTuple):
    """Nodes that compete for a place in the tree, each array [B, candidates].

    Attributes:
      scores: float32, log-probability of the path from the root.
      tokens: int32, target ids.
      parents: int32; 0 is the root, i + 1 the i-th candidate of all levels.
      depth: int32.
    """

    scores: jax.Array
    tokens: jax.Array
    parents: jax.Array
    depth: jax.Array


def draft_tree(
    settings: Eagle3Tree,
    drafter: Eagle3Drafter,
    embed: Callable[[jax.Array], jax.Array],
    draft_ids: jax.Array,
    features: jax.Array,
    following: jax.Array,
    positions: jax.Array,
    last: jax.Array,
    root: jax.Array,
    nodes: int,
    cache: KVCache | None = None,
    length: jax.Array | None = None,
) -> tuple[jax.Array, KVCache]:
    """Drafts a tree behind the known tokens.

    Of equally likely tokens the smaller draft id comes first, of equally likely nodes the one made
    first; so a node's parent is always in the tree.

    Args:
      settings: static.
      drafter: bound to its parameters.
      embed: the target's embedding, int32 [B, T] -> [B, T, D].
      draft_ids: int32 [Vd], the target's id of every draft id.
      features: [B, P, 3D], target features of P new real rows.
      following: int32 [B, P], the tokens *after* those rows; the root at the last one.
      positions: int32 [B, P].
      last: int32 [B], index of the last real row; rows behind it are padding and never seen.
      root: int32 [B], the last known token.
      nodes: tree nodes without the root, N; static. Places beyond what is drafted stay unused.
      cache: keys and values of earlier real rows; None for no prefix.
      length: int32 [B], valid rows of the cache.

    Returns:
      The packed trees, int32 [B, 3, N + 1] (see `dart_jax.tree`), nodes by depth; and the keys and
      values of the P real rows, to be appended to the cache. Those of drafted rows are dropped.
    """
    b, p, _ = features.shape
    chex.assert_shape([following, positions], (b, p))
    chex.assert_shape([last, root], (b,))
    chex.assert_type([draft_ids, following, positions, last, root], jnp.int32)
    top_k = min(settings.top_k, draft_ids.shape[0])

    # Only the last real row proposes tokens; the others merely give their keys.
    at = last[:, None]
    hidden = drafter.fc(features)
    inputs = drafter.join(embed(following), hidden)
    k, v = drafter.keys(inputs, positions)
    real = jnp.arange(p, dtype=jnp.int32)[None] <= at
    prefix = [(k, v, real[:, None])]
    if cache is not None and length is not None:
        ((k_old, v_old),) = cache
        prefix.append((k_old, v_old, visible(k_old.shape[2], length)))
    position = jnp.take_along_axis(positions, at, axis=1)
    hidden = drafter(take_rows(hidden, at), take_rows(inputs, at), position, prefix)
    itself = jnp.zeros_like(at)
    score = jnp.zeros((b, 1), jnp.float32)
    pool = [_propose(drafter, draft_ids, top_k, hidden, score, itself, 1)]

    drafted = []  # keys and values of every level's rows
    lineage = jnp.zeros((b, 1, 0), bool)  # which drafted rows each row descends from
    made = 0  # candidates of earlier levels
    for level in range(2, settings.levels + 1):
        newest = pool[-1]
        score, best = jax.lax.top_k(newest.scores, top_k)
        row = best // top_k  # that proposed it
        hidden = take_rows(hidden, row)
        inputs = drafter.join(embed(jnp.take_along_axis(newest.tokens, best, axis=1)), hidden)
        position = jnp.broadcast_to(position[:, :1] + 1, best.shape)
        drafted.append(drafter.keys(inputs, position))
        # The rows of a level do not see each other.
        own = jnp.broadcast_to(jnp.eye(top_k, dtype=bool)[None], (b, top_k, top_k))
        lineage = jnp.concatenate([take_rows(lineage, row), own], axis=2)
        k, v = (jnp.concatenate(rows, axis=2) for rows in zip(*drafted, strict=True))
        hidden = drafter(hidden, inputs, position, [*prefix, (k, v, lineage)])
        itself = made + 1 + best
        made += newest.scores.shape[1]
        pool.append(_propose(drafter, draft_ids, top_k, hidden, score, itself, level))

    everything = [jnp.concatenate(levels, axis=1) for levels in zip(*pool, strict=True)]
    return _pack(_Candidates(*everything), root, nodes), (prefix[0][:2],)


def _propose(
    drafter: Eagle3Drafter,
    draft_ids: jax.Array,
    top_k: int,
    hidden: jax.Array,
    score: jax.Array,
    itself: jax.Array,
    depth: int,
) -> _Candidates:
    """The likeliest followers of each of T rows, row by row.

    Args:
      drafter: gives the probabilities.
      draft_ids: int32 [Vd].
      top_k: followers of a row.
      hidden: [B, T, D], the layer's output.
      score: float32 [B, T], the rows' own.
      itself: int32 [B, T], the rows as `_Candidates.parents` counts them.
      depth: of the followers.
    """
    log_probs, ids = jax.lax.top_k(drafter.log_probs(hidden), top_k)
    tokens = jnp.take(draft_ids, ids).reshape(ids.shape[0], -1)
    return _Candidates(
        scores=(score[:, :, None] + log_probs).reshape(tokens.shape),
        tokens=tokens,
        parents=jnp.repeat(itself, top_k, axis=1),
        depth=jnp.full_like(tokens, depth),
    )


def _pack(pool: _Candidates, root: jax.Array, nodes: int) -> jax.Array:
    """The best `nodes` of the pool behind their root, int32 [B, 3, N + 1]."""
    _, best = jax.lax.top_k(pool.scores, min(nodes, pool.scores.shape[1]))
    best = jnp.sort(best, axis=1)  # as made, so that parents stand before their children
    tokens, parents, depth = (jnp.take_along_axis(x, best, axis=1) for x in pool[1:])
    # Candidate i is i + 1 as a parent, and becomes the node behind all chosen ones before it.
    earlier = best[:, None, :] < parents[:, :, None]
    parents = jnp.sum(earlier, axis=2, dtype=jnp.int32)
    tree = jnp.stack([tokens, parents, depth], axis=1)
    behind = nodes - best.shape[1]
    tree = jnp.pad(tree, ((0, 0), (0, 0), (1, behind)))
    return tree.at[:, 0, 0].set(root)
