"""What drafting methods share in training: attention of blocks to packed rows, and their interface.

A drafter drafts after every prefix of a sequence at once: its *real rows* are computed once, then
it drafts from chunks of *anchors*, rows after which each has a block of its own. Rotary positions
are those in the packed row: distances inside a document are the same as if it were alone.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError
from dart_jax.models.attention.segments import Segment, scores, weighted_values, windowed
from dart_jax.models.networks.pure import Params
from train.data.batch import TeacherOutputs
from train.teacher.teacher import Teacher

_NO_SCORE = -1e30  # the highest score over an empty set of keys


# The target's embedding, int32 [..] -> [.., D] in the drafter's dtype.
Embed = Callable[[jax.Array], jax.Array]


class TeacherBatch(NamedTuple):
    """A batch with the target's outputs: tokens and documents as in `Batch`, `supervised_runs`,
    and the target's embedding of the token after each row, [B, T, D]."""

    tokens: jax.Array
    document: jax.Array
    run: jax.Array
    outputs: TeacherOutputs
    embeds: jax.Array


class HeadInput(NamedTuple):
    """What the logits of one drafted position are computed from: the last layer's output, [B, C,
    D]; the position `t`, an int32 scalar, from 1; the text's tokens before those that are
    predicted, int32 [B, C]; the draft ids (see `Frozen`); and the target's head, [B, C, D] ->
    float32 [B, C, Vd]."""

    hidden: jax.Array
    t: jax.Array
    before: jax.Array
    draft_ids: jax.Array
    target_logits: Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class PackedDrafter(abc.ABC):
    """A drafting method in training, by the drafter's config and the drafted positions, d, which
    are the config's but for EAGLE-3; hashable. `drafter` is the network, bound to its
    parameters."""

    config: Any
    num_positions: int

    def shortened(self, positions: int) -> Any:
        """Returns the config of the same drafter with fewer positions, which predicts at these as
        before: no position sees later ones. Raises UserError if they do."""
        raise UserError(f"--thin is of DART and EAGLE-3, not of {type(self.config).__name__}")

    @abc.abstractmethod
    def score_rows(self, successive: bool) -> int:
        """Returns the rows of attention scores that an anchor takes; see `draft`."""

    @abc.abstractmethod
    def real_rows(self, drafter: Any, features: jax.Array, data: TeacherBatch, embed: Embed) -> Any:
        """Computes every layer's real rows, from the target's features [B, T, F] in the
        drafter's dtype."""

    @abc.abstractmethod
    def draft(
        self, drafter: Any, real: Any, data: TeacherBatch, anchors: jax.Array, successive: bool
    ) -> jax.Array:
        """Drafts from a chunk of anchors, int32 [B, C], indices of any rows.

        If they are `successive`, n, n + 1, n + 2, .., those beyond the last row may be clamped to
        it: their drafts are meaningless, but finite.

        Returns:
          [B, C, d, D], the last layer's output, which the head reads.
        """

    def informed(self, params: Params, teacher: Teacher, data: Any, ids: np.ndarray) -> Params:
        """Returns the parameters to begin with, by what the target's outputs for some of the
        data tell; by default those given, which are random but for a head of its own for the
        tokens `ids`."""
        return params

    def same_shape(self, options: Any) -> bool:
        """Tells whether the config that options make has the same shape, but for what a drafter to
        start from brings."""
        return type(self.config) is type(options)

    def logits(self, drafter: Any, inputs: HeadInput) -> tuple[jax.Array, jax.Array | None]:
        """Returns the logits of one position, float32 [B, C, Vd], and the confidence of
        `Predictions`, by default none."""
        return drafter.logits(inputs.hidden), None


class RealRows(NamedTuple):
    """One layer's real rows: inputs of its projections, [B, T, C]; residual stream before it,
    [B, T, D]; rotated keys and values, [B, K, T, h]."""

    inputs: jax.Array
    residual: jax.Array
    k: jax.Array
    v: jax.Array


class PartialAttention(NamedTuple):
    """Unnormalised attention of rows to a subset of their keys; see `merge`.

    Attributes:
      top: float32 [..., 1], the highest score.
      total: float32 [..., 1], the sum of exp(score - top).
      out: float32 [..., h], the sum of the values weighted by exp(score - top).
    """

    top: jax.Array
    total: jax.Array
    out: jax.Array

    @classmethod
    def to(cls, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> PartialAttention:
        """Attention of queries [B, H, R, h] to keys and values [B, K, S, h] under a mask
        broadcastable to [B, R, S]; each resulting array is [B, H, R, ...]."""
        segment = Segment(q, k, v, mask)
        score = scores(segment)
        top = jnp.max(score, axis=-1, keepdims=True, initial=_NO_SCORE)
        top = jax.lax.stop_gradient(top)
        weight = jnp.exp(score - top)
        b, heads, rows, _ = q.shape
        return cls(
            *(
                x.reshape(b, heads, rows, -1)
                for x in (top, weight.sum(axis=-1, keepdims=True), weighted_values(weight, segment))
            )
        )

    def where(self, mask: jax.Array) -> PartialAttention:
        """Keeps the attention where the mask is set; elsewhere, that to no keys."""
        return PartialAttention(
            jnp.where(mask, self.top, _NO_SCORE),
            jnp.where(mask, self.total, 0.0),
            jnp.where(mask, self.out, 0.0),
        )

    def map(self, function: Callable[[jax.Array], jax.Array]) -> PartialAttention:
        """Applies a function to each array."""
        return PartialAttention(*map(function, self))


def merge(*parts: PartialAttention) -> jax.Array:
    """Combines disjoint sets of keys: normalised attention, float32 [..., h]; broadcasts."""
    top = parts[0].top
    for part in parts[1:]:
        top = jnp.maximum(top, part.top)
    scaled = [(part, jnp.exp(part.top - top)) for part in parts]
    out = functools.reduce(jnp.add, [part.out * scale for part, scale in scaled])
    return out / functools.reduce(jnp.add, [part.total * scale for part, scale in scaled])


def row_index(document: jax.Array) -> jax.Array:
    """Returns each row's index in the packed row, int32 [B, T]."""
    return jnp.broadcast_to(jnp.arange(document.shape[1], dtype=jnp.int32)[None], document.shape)


def document_at(document: jax.Array, index: jax.Array) -> jax.Array:
    """Returns the documents at indices [B, ...]: -1 before the first row, clamped at the end."""
    b, t = document.shape
    flat = jnp.take_along_axis(document, jnp.clip(index, 0, t - 1).reshape(b, -1), axis=1)
    return jnp.where(index < 0, -1, flat.reshape(index.shape))


def prefix_mask(document: jax.Array, last: jax.Array, first: jax.Array | None = None) -> jax.Array:
    """Returns bool [B, R, T]: the rows up to each row `last` [B, R], in the same document, from the
    row `first` [B, R] on if there is one (`window_start`)."""
    index = row_index(document)
    same = document_at(document, last)[:, :, None] == document[:, None]
    return windowed(same & (index[:, None] <= last[:, :, None]), first, index)


def by_block(x: jax.Array) -> jax.Array:
    """[B, X, C, R, h] -> [B * C, X, R, h]: makes each block its own batch row."""
    b, heads, c, rows, h = x.shape
    return x.swapaxes(1, 2).reshape(b * c, heads, rows, h)


def unblock(x: jax.Array, batch: int) -> jax.Array:
    """[B * C, X, R, h] -> [B, X, C, R, h]."""
    return x.reshape(batch, -1, *x.shape[1:]).swapaxes(1, 2)
