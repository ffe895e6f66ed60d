"""The DART drafter after every prefix of a sequence at once (docs/method.md, section 6).

Taken literally, the training sequence has T real rows and, for each of T anchors, its own block of
m mask rows: d * T rows that attend to one another under a mask. Nothing of that size is needed:

- Real rows do not attend to blocks. Their keys are computed once and shared.
- All mask rows have the same input and differ only in their rotary position. So mask row j after
  anchor n has the same attention scores as mask row j + 1 after anchor n - 1: one query serves the
  m mask rows at the same position p = n + j. They differ in where their prefix ends. Attention to
  the keys that all of them see, up to p - m, is computed once per position; the few keys from there
  to each row's anchor are added separately.
- Inside a block only distances matter, and all mask rows have the same key and value before
  rotation: one small table serves every block.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.attention.segments import window_start, windowed
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.networks.dart import DartDrafter
from dart_jax.models.networks.draft_layer import take_rows
from dart_jax.models.rope import Rope, rotate
from train.objective.packed import (
    Embed,
    HeadInput,
    PackedDrafter,
    PartialAttention,
    RealRows,
    TeacherBatch,
    by_block,
    document_at,
    merge,
    prefix_mask,
    row_index,
    unblock,
)


@dataclasses.dataclass(frozen=True)
class PackedDart(PackedDrafter):
    """DART in training; see the base class."""

    config: DartConfig

    def shortened(self, positions: int) -> DartConfig:
        return dataclasses.replace(self.config, draft_length=positions - self.config.shifted)

    def score_rows(self, successive: bool) -> int:
        return 2 if successive else self.num_positions  # two where mask rows share scores

    def same_shape(self, options: Any) -> bool:
        """See the base class; pair scores can be added."""
        own = self.config.num_positions, self.config.shifted
        return super().same_shape(options) and own == (options.num_positions, options.shifted)

    def real_rows(
        self, drafter: DartDrafter, features: jax.Array, data: TeacherBatch, embed: Embed
    ) -> RealRows:
        x = drafter.fc(features)
        inputs = drafter.join(data.embeds, x)
        k, v = drafter.keys(inputs)
        return RealRows(inputs, x, rotate(k, row_index(data.document), self.config.rope), v)

    def draft(
        self,
        drafter: DartDrafter,
        real: RealRows,
        data: TeacherBatch,
        anchors: jax.Array,
        successive: bool,
    ) -> jax.Array:
        config, document = self.config, data.document
        b, c = anchors.shape
        m = config.draft_length
        mask_rep = drafter.mask_rep[...]
        masks = jnp.broadcast_to(mask_rep[: config.hidden_size], (b, c, m, config.hidden_size))
        x = jnp.concatenate([take_rows(real.residual, anchors)[:, :, None], masks], axis=2)
        at = drafter.queries(take_rows(real.inputs, anchors))
        q, (k, v) = drafter.queries(mask_rep[None, None]), drafter.keys(mask_rep[None, None])
        if successive:
            attended = _attend_shared_scores(config, real, at, q, k, v, document, anchors)
        else:
            q, k, v = (
                jnp.broadcast_to(y[:, :, None], (b, y.shape[1], c, m, y.shape[3]))
                for y in (q, k, v)
            )
            q = jnp.concatenate([at[:, :, :, None], q], axis=3)
            attended = _attend_each(config, real, q, k, v, document, anchors)
        flat = attended.transpose(0, 2, 3, 1, 4).reshape(b, c * (m + 1), -1)
        x = drafter.after_attention(x.reshape(b, c * (m + 1), -1), flat.astype(x.dtype))
        x = x.reshape(b, c, m + 1, -1)
        return x if config.shifted else x[:, :, 1:]

    def logits(self, drafter: DartDrafter, inputs: HeadInput) -> tuple[jax.Array, None]:
        """Adds pair scores from the second position on; see the base class."""
        logits = drafter.logits(inputs.hidden)
        if self.config.pair_rank:
            before, draftable = _to_draft_ids(inputs.before, inputs.draft_ids)
            factors = drafter.pairs.factors(drafter.normed(inputs.hidden), before)
            scored = draftable & (inputs.t > 1)
            logits += drafter.pairs.all_next(jnp.where(scored[..., None], factors, 0))
        return logits, None


def _to_draft_ids(tokens: jax.Array, draft_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the draft ids of the target's ids `tokens`, int32 [...], and whether they have one,
    bool [...]; where they have none, the draft id is arbitrary."""
    index = jnp.searchsorted(draft_ids, tokens).astype(jnp.int32)
    index = jnp.minimum(index, draft_ids.shape[0] - 1)
    return index, jnp.take(draft_ids, index) == tokens


def _attend_each(
    config: DartConfig,
    real: RealRows,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
) -> jax.Array:
    """Attention of all rows of all blocks, each row with its own scores, float32 [B, H, C, 1 + m,
    h], as the queries of the anchors and mask rows; keys and values of the mask rows are [B, K, C,
    m, h]. None is rotated yet."""
    b, _, c, rows, _ = q.shape
    offset = jnp.arange(rows, dtype=jnp.int32)
    positions = anchors[:, :, None] + offset[None, None]
    rope, window = config.rope, config.sliding_window
    q, k = _rotate_blocks(q, positions, rope), _rotate_blocks(k, positions[:, :, 1:], rope)
    first = window_start(window, positions.reshape(b, c * rows))
    seen = prefix_mask(document, jnp.repeat(anchors, rows, axis=1), first)
    prefix = PartialAttention.to(q.reshape(b, q.shape[1], c * rows, -1), real.k, real.v, seen)
    prefix = prefix.map(lambda y: y.reshape(*y.shape[:2], c, rows, -1))
    if rows == 1:
        return prefix.out / prefix.total
    own = offset[None, None, 1:] <= offset[None, :, None]
    own = windowed(own, window_start(window, offset[None]), offset[None, 1:])
    block = PartialAttention.to(by_block(q), by_block(k), by_block(v), own)
    return merge(prefix, block.map(lambda y: unblock(y, b)))


def _attend_shared_scores(
    config: DartConfig,
    real: RealRows,
    at: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
) -> jax.Array:
    """`_attend_each` after successive anchors: mask rows at a position share their scores.

    Queries `at` [B, H, C, h] are those of the anchors; `q` [1, H, 1, h], `k` and `v` [1, K, 1, h]
    those of a mask row; all not yet rotated.
    """
    (b, c), m = anchors.shape, config.draft_length
    rope, window = config.rope, config.sliding_window
    seen = prefix_mask(document, anchors, window_start(window, anchors))
    anchor = PartialAttention.to(rotate(at, anchors, rope), real.k, real.v, seen)
    at_anchor = (anchor.out / anchor.total)[:, :, :, None]
    if not m:
        return at_anchor

    # The positions p after the first anchor, and the attention to the keys that all mask rows at p
    # see.
    place = anchors[:, :1] + jnp.arange(1, c + m, dtype=jnp.int32)[None]
    q_shared = rotate(_repeat(q, b, c + m - 1), place, rope)
    seen = prefix_mask(document, place - m, window_start(window, place))
    far = PartialAttention.to(q_shared, real.k, real.v, seen)
    # Mask row j after anchor i of the chunk is at entry i + j - 1 of these positions.
    spread = np.arange(c)[:, None] + np.arange(m)
    far, q_mask = far.map(lambda y: y[:, :, spread]), q_shared[:, :, spread]
    # A document that begins after p - m has no such keys.
    own = document_at(document, anchors)[:, :, None]
    far = far.where((document_at(document, place - m)[:, spread] == own)[:, None, :, :, None])

    parts, step = [far], jnp.arange(1, m + 1, dtype=jnp.int32)
    if m > 1:
        # The keys from there to the anchor: at most the last m - 1, fewer for later mask rows.
        nearest = anchors[:, :, None] + jnp.arange(2 - m, 1, dtype=jnp.int32)[None, None]
        within = jnp.asarray(np.arange(m - 1) >= np.arange(m)[:, None])[None, None]
        seen = (within & (document_at(document, nearest) == own)[:, :, None]).reshape(-1, m, m - 1)
        first = window_start(window, (anchors[:, :, None] + step[None, None]).reshape(-1, m))
        seen = windowed(seen, first, nearest.reshape(-1, m - 1))
        k_near, v_near = (_rows_at(y, jnp.maximum(nearest, 0)) for y in (real.k, real.v))
        near = PartialAttention.to(by_block(q_mask), k_near, v_near, seen)
        parts.append(near.map(lambda y: unblock(y, b)))

    # The mask rows of a block to one another, once for all blocks.
    q, k, v = (_repeat(y, 1, m) for y in (q, k, v))
    q, k = rotate(q, step[None], rope), rotate(k, step[None], rope)
    seen = windowed(
        step[None, None] <= step[None, :, None], window_start(window, step[None]), step[None]
    )
    block = PartialAttention.to(q, k, v, seen)
    parts.append(block.map(lambda y: y[:, :, None]))
    return jnp.concatenate([at_anchor, merge(*parts)], axis=3)


def _repeat(row: jax.Array, batch: int, times: int) -> jax.Array:
    """[1, X, 1, h] -> [B, X, times, h]."""
    return jnp.broadcast_to(row, (batch, row.shape[1], times, row.shape[3]))


def _rows_at(x: jax.Array, index: jax.Array) -> jax.Array:
    """Rows [B, K, T, h] at int32 [B, C, W] -> [B * C, K, W, h]."""
    b, c, w = index.shape
    # Indexing per batch row lets XLA see that devices sharing the batch need only their own rows.
    gathered = jnp.take_along_axis(x, index.reshape(b, 1, c * w, 1), axis=2)
    return by_block(gathered.reshape(b, x.shape[1], c, w, x.shape[3]))


def _rotate_blocks(x: jax.Array, positions: jax.Array, rope: Rope) -> jax.Array:
    """Rotates [B, X, C, R, h] to positions [B, C, R]."""
    b, heads, c, rows, h = x.shape
    flat = rotate(x.reshape(b, heads, c * rows, h), positions.reshape(b, c * rows), rope)
    return flat.reshape(x.shape)
