"""A block drafter after every prefix of a sequence at once.

The context's rows do not attend to blocks, nor to one another: their keys and values are computed
once for all anchors. After each anchor, the last row of its context, a block attends to the rows up
to it and to itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.attention.segments import window_start
from dart_jax.models.cache import KVCache
from dart_jax.models.drafter_config import BlockConfig
from dart_jax.models.networks.block import BlockDrafter
from dart_jax.models.networks.draft_layer import take_rows
from dart_jax.models.networks.pure import Params
from train.objective import first_weights
from train.objective.packed import (
    Embed,
    HeadInput,
    PackedDrafter,
    PartialAttention,
    TeacherBatch,
    by_block,
    merge,
    prefix_mask,
    row_index,
    unblock,
)
from train.teacher.teacher import Teacher


class ContextRows(NamedTuple):
    """The context: rotated keys and values of all rows, [B, K, T, h], by layer; and the mask
    token's embedding, [D]."""

    rows: KVCache
    mask: jax.Array


@dataclasses.dataclass(frozen=True)
class PackedBlock(PackedDrafter):
    """A block drafter in training; see the base class."""

    config: BlockConfig

    def score_rows(self, successive: bool) -> int:
        return self.config.block_size

    def informed(self, params: Params, teacher: Teacher, data: Any, ids: np.ndarray) -> Params:
        return first_weights.informed(self.config, params, teacher, data, ids)

    def same_shape(self, options: Any) -> bool:
        brought = (
            *("layout", "draft_vocab_size", "own_head", "rope", "num_target_layers"),
            *("max_position_embeddings", "intermediate_size", "mask_token_id"),
        )
        own = {name: getattr(self.config, name) for name in brought}
        return super().same_shape(options) and self.config == dataclasses.replace(options, **own)

    def real_rows(
        self, drafter: BlockDrafter, features: jax.Array, data: TeacherBatch, embed: Embed
    ) -> ContextRows:
        mask = jax.lax.stop_gradient(embed(jnp.int32(self.config.mask_token_id)))
        keys = drafter.keys(drafter.context(features), row_index(data.document))
        return ContextRows(keys, mask)

    def draft(
        self,
        drafter: BlockDrafter,
        real: ContextRows,
        data: TeacherBatch,
        anchors: jax.Array,
        successive: bool,
    ) -> jax.Array:
        config, (b, c), size = self.config, anchors.shape, self.config.block_size
        positions = anchors[:, :, None] + 1 + jnp.arange(size, dtype=jnp.int32)[None, None]
        place, last = positions.reshape(b, c * size), jnp.repeat(anchors, size, axis=1)
        first = take_rows(data.embeds, anchors).reshape(b * c, 1, -1)
        masks = jnp.broadcast_to(real.mask.astype(first.dtype), (b * c, size - 1, first.shape[2]))
        x = jnp.concatenate([first, masks], axis=1)
        of_block = positions.reshape(b * c, size)
        for i, (layer, (k, v)) in enumerate(zip(drafter.layers, real.rows, strict=True)):
            seen = prefix_mask(data.document, last, window_start(config.decoder.window(i), place))

            def attend(inputs, residual, layer=layer, k=k, v=v, seen=seen, i=i):
                q, own_k, own_v = layer.self_attn.rotated_heads(inputs, of_block)
                q_all = unblock(q, b).reshape(b, q.shape[1], c * size, -1)
                far = PartialAttention.to(q_all, k, v, seen)
                far = far.map(lambda y: by_block(y.reshape(*y.shape[:2], c, size, -1)))
                own = PartialAttention.to(q, own_k, own_v, drafter.block_mask(i, of_block))
                out = merge(far, own).swapaxes(1, 2).reshape(b * c, size, -1)
                return layer.self_attn.o_proj(out.astype(masks.dtype), residual)

            x = layer.around(x, attend)
        x = x.reshape(b, c, size, -1)
        return x if config.shifted else x[:, :, 1:]

    def logits(
        self, drafter: BlockDrafter, inputs: HeadInput
    ) -> tuple[jax.Array, jax.Array | None]:
        """Adds pair scores and reads the confidence; see the base class."""
        normed = drafter.normed(inputs.hidden)
        logits = drafter.logits(normed, inputs.target_logits)
        first = None
        if self.config.pair_rank:
            logits += drafter.pairs.all_next(drafter.pairs.factors(normed, inputs.before))
            first = drafter.pairs.first_factors(inputs.before)
        if self.config.confidence is None:
            return logits, None
        first = first if self.config.confidence == "pairs" else None
        return logits, drafter.confidence(normed, first)
