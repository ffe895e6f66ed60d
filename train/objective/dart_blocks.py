"""The DART drafter behind every prefix of a sequence at once (docs/method.md, section 6).

Written out, the training sequence has T real rows and, for each of T anchors, its own block of m
mask rows: d * T rows that attend to one another under a mask. Nothing of that size is needed:

- Real rows do not see blocks. Their keys are computed once and shared.
- In the first layer all mask rows have the same input and differ by their rotary position alone.
  So mask row j behind anchor n gives key i the score that mask row j + 1 behind anchor n - 1 gives
  it: one *line* of scores serves the m mask rows that stand at the same position p = n + j. They
  differ in where their prefix ends. What all of them see, up to p - m, is summed once a line; the
  few keys between that and each one's anchor are added one by one.
- Inside a block only distances count, and all mask rows have the same key and value before
  rotation: one small table serves every block.
- From the second layer on mask rows differ from block to block, and each attends by itself.

Anchors are taken a chunk at a time. Rotary positions are those in the packed row: inside a document
the distances are the same as if it stood alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.attention import Segment, scores, weighted_values
from dart_jax.models.draft_layer import take_rows
from dart_jax.models.drafter import Drafter
from dart_jax.models.rope import Rope, rotate
from train.data.batch import causal

_NOTHING = -1e30  # stands for the highest score of no keys at all


class RealRows(NamedTuple):
    """One layer's real rows.

    Attributes:
      inputs: [B, T, C], of the projections.
      residual: [B, T, D].
      k: rotated keys [B, K, T, h].
      v: values [B, K, T, h].
    """

    inputs: jax.Array
    residual: jax.Array
    k: jax.Array
    v: jax.Array


class Attended(NamedTuple):
    """What rows got from some of their keys, before the softmax is normed over all of them.

    Attributes:
      top: float32 [..., 1], the highest score.
      total: float32 [..., 1], the sum of exp(score - top).
      out: float32 [..., h], the values weighted by it.
    """

    top: jax.Array
    total: jax.Array
    out: jax.Array

    @classmethod
    def to(cls, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> Attended:
        """Attention of queries [B, H, R, h] to keys and values [B, K, S, h] under a mask that is
        broadcastable to [B, R, S]; each array is [B, H, R, ...]."""
        part = Segment(q, k, v, mask)
        score = scores(part)
        top = jnp.max(score, axis=-1, keepdims=True, initial=_NOTHING)
        top = jax.lax.stop_gradient(top)
        weight = jnp.exp(score - top)
        b, heads, rows, _ = q.shape
        return cls(
            *(
                x.reshape(b, heads, rows, -1)
                for x in (top, weight.sum(axis=-1, keepdims=True), weighted_values(weight, part))
            )
        )

    def only(self, where: jax.Array) -> Attended:
        """Nothing but where it is said."""
        return Attended(
            jnp.where(where, self.top, _NOTHING),
            jnp.where(where, self.total, 0.0),
            jnp.where(where, self.out, 0.0),
        )

    def map(self, function: Callable[[jax.Array], jax.Array]) -> Attended:
        """Applies a function to each array."""
        return Attended(*map(function, self))


def merge(*parts: Attended) -> jax.Array:
    """The attention to all keys together, float32 [..., h]; shapes are broadcast."""
    top = parts[0].top
    for part in parts[1:]:
        top = jnp.maximum(top, part.top)
    scaled = [(part, jnp.exp(part.top - top)) for part in parts]
    out = functools.reduce(jnp.add, [part.out * scale for part, scale in scaled])
    return out / functools.reduce(jnp.add, [part.total * scale for part, scale in scaled])


def known_rows(
    drafter: Drafter, features: jax.Array, embeds: jax.Array, document: jax.Array
) -> tuple[RealRows, ...]:
    """Every layer's real rows.

    Args:
      drafter: bound to its parameters.
      features: [B, T, 3D] of the target.
      embeds: [B, T, D], of the tokens after those rows.
      document: int32 [B, T], see `Batch`.
    """
    index, rope = row_index(document), drafter.config.rope
    x = drafter.fc(features)
    inputs = drafter.join(embeds, x)
    made = []
    for layer, after in zip([drafter, *drafter.layers], [*drafter.layers, None], strict=True):
        k, v = layer.keys(inputs)
        k = rotate(k, index, rope)
        made.append(RealRows(inputs, x, k, v))
        if after is not None:
            q = rotate(layer.queries(inputs), index, rope)
            x = layer.finish(x, [Segment(q, k, v, causal(document))])
            inputs = after.input_layernorm(x)
    return tuple(made)


def draft(
    drafter: Drafter,
    rows: tuple[RealRows, ...],
    embeds: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
    *,
    steps: int,
    successive: bool,
) -> jax.Array:
    """Drafts behind a chunk of anchors.

    Args:
      drafter: bound to its parameters.
      rows: of `known_rows`.
      embeds: [B, T, D], of the tokens after each row; not needed here.
      document: int32 [B, T], see `Batch`.
      anchors: int32 [B, C], any rows.
      steps: d, the drafter's own.
      successive: static; whether they are n, n + 1, n + 2, ..: then mask rows share their lines of
        scores. Those that would be behind the last row may be that row: what is drafted there is
        of no use, but finite.

    Returns:
      [B, C, d, D], what the last layer gives; `drafter.logits` takes it from here.
    """
    del embeds
    config = drafter.config
    chex.assert_equal(steps, config.num_positions)
    b, c = anchors.shape
    m = config.draft_length
    mask_rep = drafter.mask_rep[...]
    masks = jnp.broadcast_to(mask_rep[: config.hidden_size], (b, c, m, config.hidden_size))
    x = jnp.concatenate([take_rows(rows[0].residual, anchors)[:, :, None], masks], axis=2)
    for i, (layer, real) in enumerate(zip([drafter, *drafter.layers], rows, strict=True)):
        if i:
            inputs = drafter.layers[i - 1].input_layernorm(x)
            q = _blocks(layer.queries(inputs.reshape(b, c * (m + 1), -1)), c)
            k, v = (_blocks(y, c) for y in layer.keys(inputs[:, :, 1:].reshape(b, c * m, -1)))
            attended = _attend_apart(config.rope, real, q, k, v, document, anchors)
        else:
            at = layer.queries(take_rows(real.inputs, anchors))
            q, (k, v) = layer.queries(mask_rep[None, None]), layer.keys(mask_rep[None, None])
            attend = _attend_by_lines if successive else _attend_alike
            attended = attend(config.rope, m, real, at, q, k, v, document, anchors)
        flat = attended.transpose(0, 2, 3, 1, 4).reshape(b, c * (m + 1), -1)
        x = layer.after_attention(x.reshape(b, c * (m + 1), -1), flat.astype(x.dtype))
        x = x.reshape(b, c, m + 1, -1)
    return x if config.shifted else x[:, :, 1:]


def _attend_apart(
    rope: Rope,
    real: RealRows,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
) -> jax.Array:
    """Attention of all rows of all blocks, each by itself.

    Args:
      rope: of the drafter.
      real: the layer's real rows.
      q: [B, H, C, 1 + m, h] of the anchors and mask rows, not yet rotated, as the keys are.
      k: [B, K, C, m, h] of the mask rows.
      v: [B, K, C, m, h].
      document: int32 [B, T].
      anchors: int32 [B, C].

    Returns:
      float32 [B, H, C, 1 + m, h].
    """
    b, _, c, rows, _ = q.shape
    offset = jnp.arange(rows, dtype=jnp.int32)
    places = anchors[:, :, None] + offset[None, None]
    q, k = _rotate_blocks(q, places, rope), _rotate_blocks(k, places[:, :, 1:], rope)
    seen = jnp.repeat(prefix_mask(document, anchors), rows, axis=1)
    prefix = Attended.to(q.reshape(b, q.shape[1], c * rows, -1), real.k, real.v, seen)
    prefix = prefix.map(lambda y: _blocks(y, c))
    if rows == 1:
        return prefix.out / prefix.total
    own = offset[None, None, 1:] <= offset[None, :, None]
    block = Attended.to(by_block(q), by_block(k), by_block(v), own)
    return merge(prefix, block.map(lambda y: unblock(y, b)))


def _attend_alike(
    rope: Rope,
    masks: int,
    real: RealRows,
    at: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
) -> jax.Array:
    """The same in the first layer, where all mask rows are alike.

    Args:
      rope: of the drafter.
      masks: m.
      real: the layer's real rows.
      at: queries [B, H, C, h] of the anchors, not yet rotated, as all are.
      q: query [1, H, 1, h] of a mask row.
      k: its key [1, K, 1, h].
      v: its value [1, K, 1, h].
      document: int32 [B, T].
      anchors: int32 [B, C].
    """
    b, _, c, h = at.shape

    def repeat(row: jax.Array) -> jax.Array:
        return jnp.broadcast_to(row[:, :, None], (b, row.shape[1], c, masks, h))

    queries = jnp.concatenate([at[:, :, :, None], repeat(q)], axis=3)
    return _attend_apart(rope, real, queries, repeat(k), repeat(v), document, anchors)


def _attend_by_lines(
    rope: Rope,
    masks: int,
    real: RealRows,
    at: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
) -> jax.Array:
    """The same as `_attend_alike` behind successive anchors, a line of scores for m mask rows."""
    (b, c), m = anchors.shape, masks
    seen = prefix_mask(document, anchors)
    anchor = Attended.to(rotate(at, anchors, rope), real.k, real.v, seen)
    at_anchor = (anchor.out / anchor.total)[:, :, :, None]
    if not m:
        return at_anchor

    # Lines, each at a position p behind the first anchor, and what all of its mask rows see.
    line = anchors[:, :1] + jnp.arange(1, c + m, dtype=jnp.int32)[None]
    q_line = rotate(_repeat(q, b, c + m - 1), line, rope)
    far = Attended.to(q_line, real.k, real.v, prefix_mask(document, line - m))
    # Mask row j behind anchor i of the chunk stands in line i + j - 1.
    spread = np.arange(c)[:, None] + np.arange(m)
    far, q_mask = far.map(lambda y: y[:, :, spread]), q_line[:, :, spread]
    # A document that begins behind p - m has nothing there.
    own = _document_at(document, anchors)[:, :, None]
    far = far.only((_document_at(document, line - m)[:, spread] == own)[:, None, :, :, None])

    parts = [far]
    if m > 1:
        # The keys between that and the anchor: the last m - 1 at most, fewer for later mask rows.
        nearest = anchors[:, :, None] + jnp.arange(2 - m, 1, dtype=jnp.int32)[None, None]
        within = jnp.asarray(np.arange(m - 1) >= np.arange(m)[:, None])[None, None]
        seen = within & (_document_at(document, nearest) == own)[:, :, None]
        k_near, v_near = (_rows_at(y, jnp.maximum(nearest, 0)) for y in (real.k, real.v))
        near = Attended.to(by_block(q_mask), k_near, v_near, seen.reshape(b * c, m, m - 1))
        parts.append(near.map(lambda y: unblock(y, b)))

    # The mask rows of a block among themselves, once for all blocks.
    step = jnp.arange(1, m + 1, dtype=jnp.int32)
    q, k, v = (_repeat(y, 1, m) for y in (q, k, v))
    q, k = rotate(q, step[None], rope), rotate(k, step[None], rope)
    block = Attended.to(q, k, v, step[None, None] <= step[None, :, None])
    parts.append(block.map(lambda y: y[:, :, None]))
    return jnp.concatenate([at_anchor, merge(*parts)], axis=3)


def row_index(document: jax.Array) -> jax.Array:
    """int32 [B, T], every row's place in the packed row."""
    return jnp.broadcast_to(jnp.arange(document.shape[1], dtype=jnp.int32)[None], document.shape)


def _document_at(document: jax.Array, index: jax.Array) -> jax.Array:
    """The documents of rows [B, ...]; -1 before the first row, the last one's behind it."""
    b, t = document.shape
    flat = jnp.take_along_axis(document, jnp.clip(index, 0, t - 1).reshape(b, -1), axis=1)
    return jnp.where(index < 0, -1, flat.reshape(index.shape))


def prefix_mask(document: jax.Array, last: jax.Array) -> jax.Array:
    """bool [B, R, T]: the rows of its document that stand up to each row `last` [B, R]."""
    index = jnp.arange(document.shape[1], dtype=jnp.int32)
    same = _document_at(document, last)[:, :, None] == document[:, None]
    return same & (index[None, None] <= last[:, :, None])


def _repeat(row: jax.Array, batch: int, times: int) -> jax.Array:
    """[1, X, 1, h] -> [B, X, times, h]."""
    return jnp.broadcast_to(row, (batch, row.shape[1], times, row.shape[3]))


def _rows_at(x: jax.Array, index: jax.Array) -> jax.Array:
    """Rows [B, K, T, h] at int32 [B, C, W] -> [B * C, K, W, h]."""
    b, c, w = index.shape
    # Devices that share the batch see that each needs its own rows alone.
    taken = jnp.take_along_axis(x, index.reshape(b, 1, c * w, 1), axis=2)
    return by_block(taken.reshape(b, x.shape[1], c, w, x.shape[3]))


def _rotate_blocks(x: jax.Array, places: jax.Array, rope: Rope) -> jax.Array:
    """Rotates [B, X, C, R, h] to places [B, C, R]."""
    b, heads, c, rows, h = x.shape
    flat = rotate(x.reshape(b, heads, c * rows, h), places.reshape(b, c * rows), rope)
    return flat.reshape(x.shape)


def _blocks(x: jax.Array, chunk: int) -> jax.Array:
    """[B, X, C * R, h] -> [B, X, C, R, h]."""
    return x.reshape(*x.shape[:2], chunk, -1, x.shape[3])


def by_block(x: jax.Array) -> jax.Array:
    """[B, X, C, R, h] -> [B * C, X, R, h]: every block a batch row of its own."""
    b, heads, c, rows, h = x.shape
    return x.swapaxes(1, 2).reshape(b * c, heads, rows, h)


def unblock(x: jax.Array, batch: int) -> jax.Array:
    """[B * C, X, R, h] -> [B, X, C, R, h]."""
    return x.reshape(batch, -1, *x.shape[1:]).swapaxes(1, 2)
