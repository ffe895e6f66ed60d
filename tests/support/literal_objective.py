"""The objective implemented literally as in the paper: one long sequence under one explicit mask.

The rows of a training sequence are its T real rows, followed by a block of m mask rows per anchor;
all of them attend under a mask of (T + A * m)**2 entries. It is slow and memory-hungry, and the
oracle of `train.objective.dart`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import Segment
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.networks.pure import Params, bind
from dart_jax.models.rope import rotate
from train.data.batch import Batch
from train.objective.loss import DrafterLoss, divergence, num_valid_anchors
from train.objective.packed import TeacherBatch
from train.objective.predictions import Frozen, Predictions, valid_predictions


def draft_logits(
    config: DartConfig, params: Params, data: TeacherBatch, anchors: jax.Array, draft_ids: jax.Array
) -> jax.Array:
    """Returns the drafter's logits after anchors int32 [B, A], with the pair scores of the
    text's tokens: float32 [B, A, d, Vd]."""
    drafter = bind(config, params)
    (b, t), a, m = data.tokens.shape, anchors.shape[1], config.draft_length
    # For each row: its block (-1 for real rows), its position, and its document.
    index = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None], (b, t))
    step = jnp.tile(jnp.arange(1, m + 1, dtype=jnp.int32), a)[None]
    anchor = jnp.repeat(anchors, m, axis=1)  # of each mask row
    block = jnp.concatenate(
        [
            jnp.full((b, t), -1, jnp.int32),
            jnp.broadcast_to(jnp.repeat(jnp.arange(a, dtype=jnp.int32), m)[None], (b, a * m)),
        ],
        axis=1,
    )
    place = jnp.concatenate([index, anchor + step], axis=1)
    last = jnp.concatenate([index, anchor], axis=1)  # the last real row that a row sees
    document = jnp.take_along_axis(data.document, last, axis=1)

    row, column = (slice(None), slice(None), None), (slice(None), None)
    own = (block[row] == block[column]) & (place[column] <= place[row])
    prefix = (place[column] <= last[row]) & (document[column] == document[row])
    seen = jnp.where(block[column] < 0, prefix, own & (block[row] >= 0))
    if config.sliding_window is not None:
        seen &= place[column] > place[row] - config.sliding_window

    hidden = drafter.fc(data.outputs.features)
    masks = jnp.broadcast_to(drafter.mask_rep[...], (b, a * m, 2 * config.hidden_size))
    inputs = jnp.concatenate([drafter.join(data.embeds, hidden), masks], axis=1)
    x = jnp.concatenate([hidden, masks[..., : config.hidden_size]], axis=1)
    k, v = drafter.keys(inputs)
    q = rotate(drafter.queries(inputs), place, config.rope)
    x = drafter.finish(x, [Segment(q, rotate(k, place, config.rope), v, seen)])
    blocks = x[:, t:].reshape(b, a, m, config.hidden_size)
    real = jnp.take_along_axis(x, anchors[..., None], axis=1)[:, :, None]
    predicting = jnp.concatenate([real, blocks], axis=2) if config.shifted else blocks
    logits = drafter.logits(predicting)
    if config.pair_rank:
        normed = drafter.normed(predicting)
        logits += _pair_scores(params["pairs"], normed, data.tokens, anchors, draft_ids)
    return logits


def _pair_scores(
    pairs: Params, normed: jax.Array, tokens: jax.Array, anchors: jax.Array, draft_ids: jax.Array
) -> jax.Array:
    """Returns the pair scores of all tokens, float32 [B, A, d, Vd], of what the head reads, [B,
    A, d, D]."""
    positions = jnp.arange(1, normed.shape[2] + 1, dtype=jnp.int32)
    index = jnp.minimum(anchors[:, :, None] + positions[None, None], tokens.shape[1] - 1)
    before = jax.vmap(lambda row, at: row[at])(tokens, index)  # [B, A, d], the tokens at n + t
    # One row per draft id; a token that cannot be drafted equals none of them.
    one_hot = (before[..., None] == draft_ids[None, None, None]).astype(normed.dtype)
    one_hot = one_hot * (positions > 1).astype(normed.dtype)[None, None, :, None]
    factors = (one_hot @ pairs["prev"]) * (1 + normed @ pairs["gate"]["kernel"])
    return (factors @ pairs["next"].T).astype(jnp.float32)


def restrict(teacher: jax.Array, draft_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Restricts log-probabilities [..., V] to the draft vocabulary, int32 [Vd]: returns them
    renormalised, [..., Vd], and the total probability of that vocabulary, [...]."""
    if draft_ids.shape[0] == teacher.shape[-1]:
        return teacher, jnp.ones_like(teacher[..., 0])
    teacher = jnp.take(teacher, draft_ids, axis=-1)
    mass = jax.nn.logsumexp(teacher, axis=-1)
    return teacher - mass[..., None], jnp.exp(mass)


def loss(
    of: DrafterLoss, params: Params, frozen: Frozen, batch: Batch, anchors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns what `DrafterLoss` returns for anchors int32 [B, A]; holds all predictions in
    memory."""
    config = of.forward.drafter
    assert isinstance(config, DartConfig)
    target = bind(of.forward.target, frozen.target)
    data = of.forward.run_target(frozen, batch)
    params = frozen.whole(params)
    draft = jax.nn.log_softmax(draft_logits(config, params, data, anchors, frozen.draft_ids))
    teacher = jax.lax.stop_gradient(jax.nn.log_softmax(target.logits(data.outputs.hidden)))
    end = data.tokens.shape[1] - 1
    total = jnp.float32(0)
    for t in range(1, config.num_positions + 1):
        rows = jnp.minimum(anchors + t, end)
        full = jnp.take_along_axis(teacher, rows[..., None], axis=1)
        predictions = Predictions(
            *restrict(full, frozen.draft_ids),
            jnp.argmax(full, axis=-1).astype(jnp.int32),
            draft[:, :, t - 1],
            valid_predictions(data.document, data.run, anchors, t),
            frozen.draft_ids,
        )
        losses = jnp.where(predictions.valid, divergence(predictions), 0.0)
        total += of.objective.gamma ** (t - 1) * jnp.sum(losses)
    return total, num_valid_anchors(batch, anchors)
