"""The drafters' objective (paper, section 3.3; `docs/method.md`, section 6): annealed divergence.

    sum over t = 1..d of gamma**(t - 1) * KL(target(. | x[:n + t + 1]) || draft(. | x[:n + 2], t))

for anchors n, which are rows counted from 0: row n joins the feature of x[n] with the embedding of
x[n + 1]. EAGLE-3's drafter minimises the same sum, over its own steps.

If the drafter has a draft vocabulary, the target's distribution is restricted to it: each
prediction's divergence is between the renormalised restriction and the drafter's distribution,
times the probability that the target gives to the draft vocabulary.

Instead of being annealed, the positions can be weighted by the drafter's confidence, as in D-PACE
(arXiv 2605.18810, equations 7 and 8): if c[t] = (1 - s) * draft(x[n + 1 + t]) + s is the drafter's
smoothed probability of the text's token, then c[1] * .. * c[t] estimates how often position t is
accepted, the sum over t how many positions are, and position t has the weight

    sum over u = t..d of c[1] * .. * c[u],

which is that sum's derivative with respect to log c[t]. It receives no gradient.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from dart_jax.errors import UserError
from dart_jax.models.pure import Params
from train.data.batch import Batch
from train.objective.predictions import (
    Frozen,
    PackedForward,
    Predictions,
    supervised_runs,
    to_draft_ids,
    valid_predictions,
)

# Share of the cross-entropy in its mixture with the total variation.
_TEXT = 0.1


@dataclasses.dataclass(frozen=True)
class Objective:
    """The objective's options.

    Raises:
      UserError: a value is out of range.
    """

    gamma: float = 0.6
    """Position t has weight gamma ** (t - 1)."""
    weights: Literal["annealed", "confidence"] = "annealed"
    """Weights of the positions: by --gamma; or, as in D-PACE, by how many more tokens would be
    accepted if the drafter were surer at a position, estimated from its own confidence."""
    smoothing: float = 0.5
    """Confidence c counts as (1 - smoothing) * c + smoothing in the weights confidence."""
    loss: Literal["kl", "top-k-kl", "cross-entropy", "cross-entropy-tv"] = "kl"
    """Against the target's full distribution; against its top-k tokens, with all others merged
    into one; against the text; or 0.1 of that, with 0.9 of the total variation between the
    drafter's and the target's distributions (DSpark, arXiv 2607.05147)."""
    top_k: int = 64
    """Tokens that top-k-kl distinguishes."""
    anchors: int | None = None
    """Anchors per row, drawn at random every step; by default all rows."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise UserError(f"--gamma must be above 0 and at most 1, got {self.gamma:g}")
        if not 0 < self.smoothing <= 1:
            raise UserError(f"--smoothing must be above 0 and at most 1, got {self.smoothing:g}")
        if self.top_k < 1:
            raise UserError(f"--top-k must be at least 1, got {self.top_k}")
        if self.anchors is not None and self.anchors < 1:
            raise UserError(f"--anchors must be at least 1, got {self.anchors}")


@dataclasses.dataclass(frozen=True)
class DrafterLoss:
    """The loss that `train.run.trainer` minimises; hashable.

    Attributes:
      forward: target and drafter.
      objective: the objective's options.
    """

    forward: PackedForward
    objective: Objective

    def __call__(
        self, params: Params, frozen: Frozen, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the loss in nats, summed over anchors, and the number of anchors that have a
        valid prediction: float32 scalars.

        Args:
          params: the drafter's trained parameters, which receive gradients.
          frozen: what is not trained.
          batch: packed rows.
          key: draws the anchors, unless all rows are anchors.
        """
        anchors = None
        if self.objective.anchors is not None:
            anchors = draw_anchors(key, batch, self.objective.anchors)
        total = self.total(params, frozen, batch, anchors)
        return total, num_valid_anchors(batch, anchors)

    def total(
        self, params: Params, frozen: Frozen, batch: Batch, anchors: jax.Array | None
    ) -> jax.Array:
        """Returns the sum of the losses of these anchors; None stands for all rows."""
        survey = self._confidence if self.objective.weights == "confidence" else None
        return self.forward.total(self._measure, params, frozen, batch, anchors, survey)

    def _confidence(self, predictions: Predictions) -> jax.Array:
        """The smoothed confidence, 0 where there is nothing to predict."""
        smoothing = self.objective.smoothing
        confidence = (1 - smoothing) * text_probability(predictions) + smoothing
        return jnp.where(predictions.valid, confidence, 0.0)

    def _measure(self, predictions: Predictions) -> jax.Array:
        """Sums the valid losses, weighted by their position."""
        losses = jnp.where(predictions.valid, self.losses(predictions), 0.0)
        if predictions.survey is None:
            gamma = jnp.float32(self.objective.gamma) ** (predictions.t - 1).astype(jnp.float32)
            return gamma * jnp.sum(losses)
        weights = jnp.take(confidence_weights(predictions.survey), predictions.t - 1, axis=0)
        return jnp.sum(weights * losses)

    def losses(self, predictions: Predictions) -> jax.Array:
        """Losses in nats, float32 [B, C]."""
        if self.objective.loss == "cross-entropy":
            return cross_entropy(predictions)
        teacher, mass, draft = predictions.teacher, predictions.mass, predictions.draft
        if self.objective.loss == "cross-entropy-tv":
            variation = mass * total_variation(teacher, draft)
            return _TEXT * cross_entropy(predictions) + (1 - _TEXT) * variation
        if self.objective.loss == "top-k-kl":
            return mass * top_k_kl(teacher, draft, self.objective.top_k)
        return mass * kl(teacher, draft)


def kl(teacher: jax.Array, draft: jax.Array) -> jax.Array:
    """KL(teacher || draft) of log-probabilities [..., Vd] -> [...]."""
    return jnp.sum(jnp.exp(teacher) * (teacher - draft), axis=-1)


def top_k_kl(teacher: jax.Array, draft: jax.Array, k: int) -> jax.Array:
    """KL after merging all tokens except the teacher's top k into one.

    This is still a divergence of distributions, never above the full one.
    """
    if k >= teacher.shape[-1]:
        return kl(teacher, draft)
    _, index = jax.lax.top_k(teacher, k)
    top, own = (jnp.take_along_axis(x, index, axis=-1) for x in (teacher, draft))
    return kl(top, own) + kl(_others(teacher, index), _others(draft, index))


def total_variation(teacher: jax.Array, draft: jax.Array) -> jax.Array:
    """Half the sum of the differences of probabilities, of log-probabilities [..., Vd] -> [...]:
    how often a draft that is sampled and tested by the ratio of probabilities is rejected."""
    return 0.5 * jnp.sum(jnp.abs(jnp.exp(teacher) - jnp.exp(draft)), axis=-1)


def cross_entropy(predictions: Predictions) -> jax.Array:
    """Cross-entropy against the text; 0 where its token is not in the draft vocabulary."""
    own, known = _text_log_prob(predictions)
    return jnp.where(known, -own, 0.0)


def text_probability(predictions: Predictions) -> jax.Array:
    """The drafter's probability of the text's token; 0 if it is not in the draft vocabulary."""
    own, known = _text_log_prob(predictions)
    return jnp.where(known, jnp.exp(own), 0.0)


def confidence_weights(confidences: jax.Array) -> jax.Array:
    """The weights of positions 1..d, from their smoothed confidences: float32 [d, ...]."""
    reached = jnp.cumprod(confidences, axis=0)
    return jax.lax.cumsum(reached, axis=0, reverse=True)


def draw_anchors(key: jax.Array, batch: Batch, most: int) -> jax.Array:
    """Draws each row's anchors, int32 [B, A], ascending: at random among those whose first
    prediction is valid; others only if these are too few."""
    rows = _all_rows(batch)
    first = _first_valid(batch, rows).astype(jnp.float32)
    order = jax.random.uniform(key, first.shape) + first
    _, anchors = jax.lax.top_k(order, min(most, first.shape[1]))
    return jnp.sort(anchors, axis=1)


def num_valid_anchors(batch: Batch, anchors: jax.Array | None) -> jax.Array:
    """Counts the anchors that have a valid prediction, float32; None stands for all rows."""
    anchors = _all_rows(batch) if anchors is None else anchors
    return jnp.sum(_first_valid(batch, anchors).astype(jnp.float32))


def _first_valid(batch: Batch, anchors: jax.Array) -> jax.Array:
    return valid_predictions(
        jnp.asarray(batch.document), supervised_runs(batch.supervised), anchors, 1
    )


def _all_rows(batch: Batch) -> jax.Array:
    index = jnp.arange(batch.tokens.shape[1], dtype=jnp.int32)[None]
    return jnp.broadcast_to(index, batch.tokens.shape)


def _text_log_prob(predictions: Predictions) -> tuple[jax.Array, jax.Array]:
    """Returns the drafter's log-probability of the text's token, and whether it can draft it."""
    index, known = to_draft_ids(predictions.token, predictions.draft_ids)
    own = jnp.take_along_axis(predictions.draft, index[..., None], axis=-1)[..., 0]
    return own, known


def _others(log_probs: jax.Array, index: jax.Array) -> jax.Array:
    """Returns the total log-probability of all tokens except those in `index`, [..., 1]."""
    rest = jnp.put_along_axis(log_probs, index, -jnp.inf, axis=-1, inplace=False)
    return jax.nn.logsumexp(rest, axis=-1, keepdims=True)
