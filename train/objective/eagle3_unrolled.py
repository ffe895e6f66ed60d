"""EAGLE-3's drafter after every prefix, unrolled as in drafting ("training-time test").

Drafting feeds the drafter's output back to it, so training does the same for d steps: step t reads
the output of step t - 1 for the same row, and the embedding of the next true token. A row attends
to the real rows up to its own and to its own earlier steps; each step moves it one position ahead.
Rows do not see one another's later steps, so they are processed in chunks, as DART's anchors are.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import window_start, windowed
from dart_jax.models.drafters.eagle3 import Eagle3Drafter
from dart_jax.models.drafters.layer import take_rows
from dart_jax.models.rope import rotate
from train.objective.dart_blocks import (
    PartialAttention,
    RealRows,
    by_block,
    merge,
    prefix_mask,
    row_index,
    unblock,
)


def real_rows(
    drafter: Eagle3Drafter, features: jax.Array, embeds: jax.Array, document: jax.Array
) -> RealRows:
    """Computes the real rows; arguments as for `train.objective.dart_blocks.real_rows`."""
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
    """Drafts from a chunk of anchors along the true tokens; arguments and result as for
    `train.objective.dart_blocks.draft`, with any `steps`, and `successive` without effect."""
    del successive
    (b, c), rope, window = anchors.shape, drafter.config.rope, drafter.config.sliding_window
    hidden, inputs = take_rows(rows.residual, anchors), take_rows(rows.inputs, anchors)
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    outputs = []
    for step in range(steps):
        place = anchors + step
        q = rotate(drafter.queries(inputs), place, rope)
        prefix = prefix_mask(document, anchors, window_start(window, place))
        parts = [PartialAttention.to(q, rows.k, rows.v, prefix)]
        if step:
            k, v = drafter.keys_at(inputs, place)
            keys.append(k)
            values.append(v)
            k, v = (by_block(jnp.stack(each, axis=3)) for each in (keys, values))
            own_steps = jnp.arange(1, step + 1, dtype=jnp.int32)[None]
            first = window_start(window, own_steps[:, -1:])
            seen = windowed(jnp.ones((1, 1, step), bool), first, own_steps)
            own = PartialAttention.to(by_block(q[:, :, :, None]), k, v, seen)
            parts.append(own.map(lambda y: unblock(y, b)[:, :, :, 0]))
        attended = merge(*parts).swapaxes(1, 2).reshape(b, c, -1)
        hidden = drafter.after_attention(hidden, attended.astype(hidden.dtype))
        outputs.append(hidden)
        # Clamp: beyond the end of the row nothing is supervised.
        following = jnp.minimum(place + 1, embeds.shape[1] - 1)
        inputs = drafter.join(take_rows(embeds, following), hidden)
    return jnp.stack(outputs, axis=2)
