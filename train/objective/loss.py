"""The drafters' objective (paper, section 3.3; `docs/method.md`, section 6): annealed divergence.

    sum over t = 1..d of gamma**(t - 1) * KL(target(. | x[:n + t + 1]) || draft(. | x[:n + 2], t))

for anchors n, which are rows counted from 0: row n holds the feature of x[n] and the embedding of
x[n + 1]. EAGLE-3's drafter is trained by the same sum, over its own steps.

Where the drafter has a vocabulary of its own, the target's distribution is restricted to it: each
prediction's divergence is between the restricted one, normed, and the drafter's, times the
probability that the target gives to the draft vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from dart_jax.errors import UserError
from dart_jax.models.pure import Params
from train.data.batch import Batch
from train.objective.predictions import Drafting, Frozen, Predictions, count, runs


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is minimised.

    Raises:
      UserError: a value is out of range.
    """

    gamma: float = 0.6
    """Weight of position t is gamma ** (t - 1)."""
    loss: Literal["kl", "top-k-kl", "cross-entropy"] = "kl"
    """Against the target's whole distribution; against its likeliest tokens, all others taken
    together as one; or against the text."""
    top_k: int = 64
    """Tokens that top-k-kl tells apart."""
    anchors: int | None = None
    """Prefixes of a row that are drafted from, drawn anew every step; all without it."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise UserError(f"--gamma must be above 0 and at most 1, got {self.gamma:g}")
        if self.top_k < 1:
            raise UserError(f"--top-k must be at least 1, got {self.top_k}")
        if self.anchors is not None and self.anchors < 1:
            raise UserError(f"--anchors must be at least 1, got {self.anchors}")


@dataclasses.dataclass(frozen=True)
class DrafterLoss:
    """The loss that `train.run.trainer` minimises; hashable.

    Attributes:
      drafting: target and drafter.
      objective: what is minimised.
    """

    drafting: Drafting
    objective: Objective

    def __call__(
        self, params: Params, frozen: Frozen, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The sum over anchors, in nats, and the number of those that have a prediction that
        counts: float32 scalars.

        Args:
          params: the drafter's, which gradients are taken for.
          frozen: what is not trained.
          batch: rows.
          key: draws the anchors, if not all are taken.
        """
        anchors = None
        if self.objective.anchors is not None:
            anchors = draw_anchors(key, batch, self.objective.anchors)
        total = self.drafting.total(self._measure, params, frozen, batch, anchors)
        return total, number(batch, anchors)

    def _measure(self, made: Predictions) -> jax.Array:
        """Losses that count, summed and weighted by their position."""
        gamma = jnp.float32(self.objective.gamma) ** (made.t - 1).astype(jnp.float32)
        losses = jnp.where(made.counts, self.losses(made), 0.0)
        return gamma * jnp.sum(losses)

    def losses(self, made: Predictions) -> jax.Array:
        """In nats, float32 [B, C]."""
        if self.objective.loss == "cross-entropy":
            return cross_entropy(made)
        teacher, weight = restrict(made)
        if self.objective.loss == "top-k-kl":
            return weight * top_k_kl(teacher, made.draft, self.objective.top_k)
        return weight * kl(teacher, made.draft)


def kl(teacher: jax.Array, draft: jax.Array) -> jax.Array:
    """KL(teacher || draft) of log-probabilities [..., Vd] -> [...]."""
    return jnp.sum(jnp.exp(teacher) * (teacher - draft), axis=-1)


def top_k_kl(teacher: jax.Array, draft: jax.Array, k: int) -> jax.Array:
    """The same after all but the teacher's k likeliest tokens are taken together as one.

    So it is a divergence of distributions, never above the whole one.
    """
    if k >= teacher.shape[-1]:
        return kl(teacher, draft)
    _, index = jax.lax.top_k(teacher, k)
    top, own = (jnp.take_along_axis(x, index, axis=-1) for x in (teacher, draft))
    return kl(top, own) + kl(_others(teacher, index), _others(draft, index))


def cross_entropy(made: Predictions) -> jax.Array:
    """Of the text; nothing where its token is not in the draft vocabulary."""
    index = jnp.searchsorted(made.draft_ids, made.token).astype(jnp.int32)
    index = jnp.minimum(index, made.draft_ids.shape[0] - 1)
    there = jnp.take(made.draft_ids, index) == made.token
    own = jnp.take_along_axis(made.draft, index[..., None], axis=-1)[..., 0]
    return jnp.where(there, -own, 0.0)


def restrict(made: Predictions) -> tuple[jax.Array, jax.Array]:
    """The teacher's log-probabilities among the draft vocabulary, [..., Vd], and the probability
    that it gives to all of it, [...]."""
    if made.draft.shape[-1] == made.teacher.shape[-1]:
        return made.teacher, jnp.ones_like(made.teacher[..., 0])
    teacher = jnp.take(made.teacher, made.draft_ids, axis=-1)
    mass = jax.nn.logsumexp(teacher, axis=-1)
    return teacher - mass[..., None], jnp.exp(mass)


def draw_anchors(key: jax.Array, batch: Batch, most: int) -> jax.Array:
    """int32 [B, A], ascending, each row's at random among those whose first prediction counts;
    others only where these are too few."""
    rows = _all_rows(batch)
    first = _first_counts(batch, rows).astype(jnp.float32)
    order = jax.random.uniform(key, first.shape) + first
    _, anchors = jax.lax.top_k(order, min(most, first.shape[1]))
    return jnp.sort(anchors, axis=1)


def number(batch: Batch, anchors: jax.Array | None) -> jax.Array:
    """How many anchors have a prediction that counts, float32; None takes all rows."""
    anchors = _all_rows(batch) if anchors is None else anchors
    return jnp.sum(_first_counts(batch, anchors).astype(jnp.float32))


def _first_counts(batch: Batch, anchors: jax.Array) -> jax.Array:
    return count(jnp.asarray(batch.document), runs(batch.supervised), anchors, 1)


def _all_rows(batch: Batch) -> jax.Array:
    index = jnp.arange(batch.tokens.shape[1], dtype=jnp.int32)[None]
    return jnp.broadcast_to(index, batch.tokens.shape)


def _others(log_probs: jax.Array, index: jax.Array) -> jax.Array:
    """The log-probability of all tokens but those of an index, [..., 1]."""
    rest = jnp.put_along_axis(log_probs, index, -jnp.inf, axis=-1, inplace=False)
    return jax.nn.logsumexp(rest, axis=-1, keepdims=True)
