"""EAGLE-3's drafter after every prefix, unrolled as in drafting ("training-time test").

Drafting feeds the drafter's output back to it, so training does the same for d steps: step t reads
the output of step t - 1 for the same row, and the embedding of the next true token. A row attends
to the real rows up to its own and to its own earlier steps; each step moves it one position ahead.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import window_start, windowed
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.networks.draft_layer import take_rows
from dart_jax.models.networks.eagle3 import Eagle3Drafter
from dart_jax.models.rope import rotate
from train.objective.packed import (
    Embed,
    PackedDrafter,
    PartialAttention,
    RealRows,
    TeacherBatch,
    by_block,
    merge,
    prefix_mask,
    row_index,
    unblock,
)


@dataclasses.dataclass(frozen=True)
class PackedEagle3(PackedDrafter):
    """EAGLE-3 in training, with any number of steps; see the base class."""

    config: Eagle3Config

    def shortened(self, positions: int) -> Eagle3Config:
        return self.config

    def score_rows(self, successive: bool) -> int:
        return 1  # of a step at a time

    def real_rows(
        self, drafter: Eagle3Drafter, features: jax.Array, data: TeacherBatch, embed: Embed
    ) -> RealRows:
        hidden = drafter.fc(features)
        inputs = drafter.join(data.embeds, hidden)
        return RealRows(inputs, hidden, *drafter.keys_at(inputs, row_index(data.document)))

    def draft(
        self,
        drafter: Eagle3Drafter,
        real: RealRows,
        data: TeacherBatch,
        anchors: jax.Array,
        successive: bool,
    ) -> jax.Array:
        (b, c), rope, window = anchors.shape, self.config.rope, self.config.sliding_window
        hidden, inputs = take_rows(real.residual, anchors), take_rows(real.inputs, anchors)
        keys: list[jax.Array] = []
        values: list[jax.Array] = []
        outputs = []
        for step in range(self.num_positions):
            place = anchors + step
            q = rotate(drafter.queries(inputs), place, rope)
            prefix = prefix_mask(data.document, anchors, window_start(window, place))
            parts = [PartialAttention.to(q, real.k, real.v, prefix)]
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
            following = jnp.minimum(place + 1, data.embeds.shape[1] - 1)
            inputs = drafter.join(take_rows(data.embeds, following), hidden)
        return jnp.stack(outputs, axis=2)
