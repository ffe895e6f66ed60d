"""The drafters' objective (paper, section 3.3; `docs/method.md`, section 6): annealed divergence.

    sum over t = 1..d of gamma**(t - 1) * KL(target(. | x[:n + t + 1]) || draft(. | x[:n + 2], t))

for anchors n, which are rows counted from 0: row n joins the feature of x[n] with the embedding of
x[n + 1]. EAGLE-3's drafter minimises the same sum, over its own steps; block drafters another
divergence with other weights, if it is chosen (section 8).

If the drafter has a draft vocabulary, the target's distribution is restricted to it: each
prediction's divergence is between the renormalised restriction and the drafter's distribution,
times the probability that the target gives to the draft vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from dart_jax.models.networks.pure import Params
from train.data.batch import Batch
from train.objective.config import Objective
from train.objective.predictions import (
    HEAD,
    Chunk,
    DraftInputs,
    Frozen,
    PackedForward,
    Predictions,
    supervised_runs,
    valid_predictions,
)


@dataclasses.dataclass(frozen=True)
class DrafterLoss:
    """The loss that `train.run.trainer` minimises; hashable."""

    forward: PackedForward
    objective: Objective
    rarity: tuple[float, ...] | None = None  # how much more each position weighs, if it is thinned

    def __post_init__(self) -> None:
        if self.objective.thin:
            self.forward.shortened(1)  # raises for drafters that cannot be

    def __call__(
        self, params: Params, frozen: Frozen, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the loss of a batch, summed over anchors, and the number of anchors that have
        a valid prediction: float32 scalars. The key draws the anchors, unless all rows are
        anchors."""
        anchors = None
        if self.objective.anchors is not None:
            anchors = draw_anchors(key, batch, self.objective.anchors)
            if self.objective.thin:  # any of them may be among the first
                anchors = jax.random.permutation(jax.random.fold_in(key, 0), anchors, axis=1)
        total = self.total(params, frozen, batch, anchors)
        return total, num_valid_anchors(batch, anchors)

    def total(
        self, params: Params, frozen: Frozen, batch: Batch, anchors: jax.Array | None
    ) -> jax.Array:
        """Returns the sum of the losses of these anchors; None stands for all rows. Nothing before
        the head is differentiated if all trained parameters are in it."""
        inputs = self.forward.inputs(params, frozen, batch, anchors)
        trained = ("params",) if params.keys() <= HEAD else ("params", "real")
        total = jnp.zeros((), jnp.float32)
        for part, own in self._parts(inputs):
            total += chunked_sum(part._of_chunk, part.forward.chunks(own)[0], own, trained)
        return total

    def _parts(self, inputs: DraftInputs) -> list[tuple[DrafterLoss, DraftInputs]]:
        """Returns the losses that add up to the whole, and what each is of. Thinned, they are of
        anchors after which all positions are predicted, the first half of them, and the first
        quarter; otherwise there is one."""
        if inputs.anchors is None or not self.objective.thin:
            return [(self, inputs)]
        d, count = self.forward.num_positions, inputs.anchors.shape[1]
        depths, ends = (d, -(-d // 2), -(-d // 4)), (-(-count // 8), -(-count // 2), count)
        rarity = tuple(
            count / max(end for depth, end in zip(depths, ends, strict=True) if t < depth)
            for t in range(d)
        )
        return [
            (
                dataclasses.replace(self, forward=self.forward.shortened(depth), rarity=rarity),
                inputs._replace(anchors=inputs.anchors[:, begin:end]),
            )
            for depth, begin, end in zip(depths, (0, *ends[:-1]), ends, strict=True)
            if begin < end
        ]

    def _of_chunk(self, inputs: DraftInputs, i: jax.Array) -> jax.Array:
        """The losses of a chunk of anchors at all positions."""
        chunk = self.forward.chunk(inputs, i)
        if self.objective.position_weights == "path":
            chunk = chunk._replace(weights=self._path_weights(jax.lax.stop_gradient(chunk)))
        trained = ("head",) if inputs.params.keys() <= HEAD else ("head", "hidden")
        return chunked_sum(self._at_position, self.forward.num_positions, chunk, trained)

    def _at_position(self, chunk: Chunk, i: jax.Array) -> jax.Array:
        """The valid losses of a chunk at one position, from 0, weighted and summed."""
        predictions = self.forward.predictions(chunk, i + 1)
        losses, accepted = divergence(predictions), acceptance(predictions)
        if self.objective.loss == "tv":
            losses = 0.1 * losses + 0.9 * predictions.mass * (1 - accepted)
        if chunk.weights is None:
            losses *= jnp.float32(self.objective.gamma) ** i.astype(jnp.float32)
            if self.rarity is not None:
                losses *= jnp.take(jnp.asarray(self.rarity, jnp.float32), i)
        else:
            losses *= jnp.take(chunk.weights, i, axis=-1)
        if predictions.confidence is not None:
            losses += _surprise(predictions.confidence, predictions.mass * accepted)
        return jnp.sum(jnp.where(predictions.valid, losses, 0.0))

    def _path_weights(self, chunk: Chunk) -> jax.Array:
        """The weights of a chunk's predictions by the rates at which they are accepted."""

        def rate(t: jax.Array) -> jax.Array:
            predictions = self.forward.predictions(chunk, t)
            accepted = predictions.mass * acceptance(predictions)
            return jnp.where(predictions.valid, accepted, 0.0)

        rates = jax.lax.map(rate, self.forward.positions)
        return path_weights(jnp.moveaxis(rates, 0, -1))


def divergence(predictions: Predictions) -> jax.Array:
    """Returns the losses in nats, float32 [B, C]: KL(teacher || draft) times the teacher's mass."""
    teacher, draft = predictions.teacher, predictions.draft
    return predictions.mass * jnp.sum(jnp.exp(teacher) * (teacher - draft), axis=-1)


def acceptance(predictions: Predictions) -> jax.Array:
    """Returns how often a token drawn from the drafter's distribution is one that the target draws,
    at best: 1 - TV, float32 [B, C], both over the draft vocabulary."""
    difference = jnp.exp(predictions.teacher) - jnp.exp(predictions.draft)
    return 1 - 0.5 * jnp.sum(jnp.abs(difference), axis=-1)


# Part of 1 in the rates that make weights, so that no position is given up.
_SMOOTH = 0.1


def path_weights(rates: jax.Array) -> jax.Array:
    """Returns the weights of positions, descending, by their rates of acceptance if those before
    are accepted: float32 [..., d] both.

    The expected number of accepted tokens is the sum over j of the product of the rates up to j;
    position t weighs as much as the products from t on (D-PACE, of vLLM's library speculators).
    """
    smoothed = (1 - _SMOOTH) * rates + _SMOOTH
    products = jnp.cumprod(smoothed, axis=-1)
    return jnp.flip(jnp.cumsum(jnp.flip(products, axis=-1), axis=-1), axis=-1)


def _surprise(logits: jax.Array, rates: jax.Array) -> jax.Array:
    """Cross-entropy in nats of probabilities, given by their logits, for events of these rates."""
    rates = jax.lax.stop_gradient(rates)
    return -(rates * jax.nn.log_sigmoid(logits) + (1 - rates) * jax.nn.log_sigmoid(-logits))


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


def chunked_sum(
    term: Callable[[Any, jax.Array], jax.Array],
    chunks: int,
    inputs: Any,
    differentiated: Collection[str],
) -> jax.Array:
    """Returns the sum over i = 0 .. chunks - 1 of `term(inputs, i)`, float32 of any shape.

    Under differentiation, which needs scalar terms, each term's gradient is computed together with
    the term and accumulated: only one chunk's intermediate values are held at a time, and nothing
    is recomputed, as `jax.checkpoint` would do.

    Only the fields `differentiated` of the named tuple `inputs` receive gradients; `term` must not
    close over anything else that should.
    """
    args = {name: getattr(inputs, name) for name in differentiated}
    fixed = inputs._replace(**dict.fromkeys(differentiated))

    def rejoined(args: dict[str, Any], fixed: Any, i: jax.Array) -> jax.Array:
        return term(fixed._replace(**args), i)

    return _sum(rejoined, chunks, args, fixed)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum(term: Callable[[Any, Any, jax.Array], jax.Array], chunks: int, args: Any, fixed: Any):
    def add(total: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        return total + term(args, fixed, i), None

    shape = jax.eval_shape(term, args, fixed, jnp.int32(0)).shape
    return jax.lax.scan(add, jnp.zeros(shape, jnp.float32), jnp.arange(chunks, dtype=jnp.int32))[0]


def _forward(term, chunks, args, fixed):
    def add(carry, i):
        value, gradient = jax.value_and_grad(term)(args, fixed, i)
        return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), carry, (value, gradient)), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), args)
    start = (jnp.zeros((), jnp.float32), zeros)
    (total, gradient), _ = jax.lax.scan(add, start, jnp.arange(chunks, dtype=jnp.int32))
    gradient = jax.tree.map(lambda g, x: g.astype(x.dtype), gradient, args)
    return total, gradient


def _backward(term, chunks, gradient, cotangent):
    return jax.tree.map(lambda g: g * cotangent.astype(g.dtype), gradient), None


_sum.defvjp(_forward, _backward)
