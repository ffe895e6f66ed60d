"""EAGLE-3's drafter behind every prefix, as it runs when it drafts ("training-time test").

Drafting feeds the drafter its own output back, so it is trained on that: d steps, of which step t
reads what step t - 1 gave for the same row, beside the embedding of the next true token. A row sees
the real rows up to its own and its own earlier steps, and stands one position further on in each.
Rows do not see one another's later steps, so they are taken a chunk at a time, as DART's anchors.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.models.draft_layer import take_rows
from dart_jax.models.eagle3 import Eagle3Drafter
from dart_jax.models.rope import rotate
from train.objective.dart_blocks import (
    Attended,
    RealRows,
    by_block,
    merge,
    prefix_mask,
    row_index,
    unblock,
)


def known_rows(
    drafter: Eagle3Drafter, features: jax.Array, embeds: jax.Array, document: jax.Array
) -> RealRows:
    """The rows of known tokens; arguments as of `train.objective.dart_blocks.known_rows`."""
    hidden = drafter.fc(features)
    inputs = drafter.join(embeds, hidden)
    return RealRows(inputs, hidden, *drafter.keys_at(inputs, row_index(document)))


def draft(
    drafter: Eagle3Drafter,
    rows: RealRows,
    embeds: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
    *,
    steps: int,
    successive: bool,
) -> jax.Array:
    """Drafts behind a chunk of anchors along the true tokens.

    Args:
      drafter: bound to its parameters.
      rows: of `known_rows`.
      embeds: [B, T, D], of the tokens after each row.
      document: int32 [B, T], see `Batch`.
      anchors: int32 [B, C], any rows.
      steps: d; static.
      successive: makes no difference here.

    Returns:
      [B, C, d, D]; `drafter.logits` takes it from here.
    """
    del successive
    (b, c), rope = anchors.shape, drafter.config.rope
    prefix = prefix_mask(document, anchors)
    hidden, inputs = take_rows(rows.residual, anchors), take_rows(rows.inputs, anchors)
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    outputs = []
    for step in range(steps):
        place = anchors + step
        q = rotate(drafter.queries(inputs), place, rope)
        parts = [Attended.to(q, rows.k, rows.v, prefix)]
        if step:
            k, v = drafter.keys_at(inputs, place)
            keys.append(k)
            values.append(v)
            k, v = (by_block(jnp.stack(each, axis=3)) for each in (keys, values))
            own = Attended.to(by_block(q[:, :, :, None]), k, v, jnp.ones((1, 1, step), bool))
            parts.append(own.map(lambda y: unblock(y, b)[:, :, :, 0]))
        attended = merge(*parts).swapaxes(1, 2).reshape(b, c, -1)
        hidden = drafter.after_attention(hidden, attended.astype(hidden.dtype))
        outputs.append(hidden)
        # Beyond the row's end nothing is supervised.
        following = jnp.minimum(place + 1, embeds.shape[1] - 1)
        inputs = drafter.join(take_rows(embeds, following), hidden)
    return jnp.stack(outputs, axis=2)
