"""The objective as the paper writes it down: one long sequence under one explicit mask.

The rows of a training sequence are its T real ones and, behind them, a block of m mask rows for
every anchor; each of them attends to all under a mask of (T + A * m)**2 entries. It is slow and
large, and what `train.objective.dart_blocks` is checked and measured against.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.models.attention import Segment
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.pure import Params, bind
from dart_jax.models.rope import rotate
from train.data.batch import Batch
from train.objective.loss import DrafterLoss, number
from train.objective.predictions import Frozen, Known, Predictions, count


def draft_logits(
    config: DrafterConfig, params: Params, known: Known, anchors: jax.Array
) -> jax.Array:
    """The drafter's logits behind anchors int32 [B, A]: float32 [B, A, d, Vd]."""
    drafter = bind(config, params)
    (b, t), a, m = known.tokens.shape, anchors.shape[1], config.draft_length
    # Of every row: its block (-1 for real rows), its place, and its document.
    index = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None], (b, t))
    step = jnp.tile(jnp.arange(1, m + 1, dtype=jnp.int32), a)[None]
    behind = jnp.repeat(anchors, m, axis=1)
    block = jnp.concatenate(
        [
            jnp.full((b, t), -1, jnp.int32),
            jnp.broadcast_to(jnp.repeat(jnp.arange(a, dtype=jnp.int32), m)[None], (b, a * m)),
        ],
        axis=1,
    )
    place = jnp.concatenate([index, behind + step], axis=1)
    last = jnp.concatenate([index, behind], axis=1)  # the last real row that a row sees
    document = jnp.take_along_axis(known.document, last, axis=1)

    row, column = (slice(None), slice(None), None), (slice(None), None)
    own = (block[row] == block[column]) & (place[column] <= place[row])
    prefix = (place[column] <= last[row]) & (document[column] == document[row])
    seen = jnp.where(block[column] < 0, prefix, own & (block[row] >= 0))

    hidden = drafter.fc(known.features)
    masks = jnp.broadcast_to(drafter.mask_rep[...], (b, a * m, 2 * config.hidden_size))
    inputs = jnp.concatenate([drafter.join(known.embeds, hidden), masks], axis=1)
    x = jnp.concatenate([hidden, masks[..., : config.hidden_size]], axis=1)
    for layer, after in zip([drafter, *drafter.layers], [*drafter.layers, None], strict=True):
        k, v = layer.keys(inputs)
        q = rotate(layer.queries(inputs), place, config.rope)
        x = layer.finish(x, [Segment(q, rotate(k, place, config.rope), v, seen)])
        if after is not None:
            inputs = after.input_layernorm(x)
    blocks = x[:, t:].reshape(b, a, m, config.hidden_size)
    real = jnp.take_along_axis(x, anchors[..., None], axis=1)[:, :, None]
    drafting = jnp.concatenate([real, blocks], axis=2) if config.shifted else blocks
    return drafter.logits(drafting)


def loss(
    of: DrafterLoss, params: Params, frozen: Frozen, batch: Batch, anchors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What `DrafterLoss` gives for these anchors, all predictions held at once.

    Raises:
      TypeError: the drafter is not DART's.
    """
    config = of.drafting.drafter
    if not isinstance(config, DrafterConfig):
        raise TypeError("only DART's objective is written out here")
    target = bind(of.drafting.target, frozen.target)
    known = of.drafting.read(frozen, batch)
    draft = jax.nn.log_softmax(draft_logits(config, params, known, anchors))
    teacher = jax.lax.stop_gradient(jax.nn.log_softmax(target.logits(known.hidden)))
    end = known.tokens.shape[1] - 1
    total = jnp.float32(0)
    for t in range(1, config.num_positions + 1):
        rows = jnp.minimum(anchors + t, end)
        made = Predictions(
            jnp.int32(t),
            jnp.take_along_axis(teacher, rows[..., None], axis=1),
            draft[:, :, t - 1],
            jnp.take_along_axis(known.tokens, jnp.minimum(anchors + t + 1, end), axis=1),
            count(known.document, known.run, anchors, t),
            frozen.draft_ids,
        )
        losses = jnp.where(made.counts, of.losses(made), 0.0)
        total += of.objective.gamma ** (t - 1) * jnp.sum(losses)
    return total, number(batch, anchors)
