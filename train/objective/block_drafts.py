"""A block drafter after every prefix of a sequence at once.

The context's rows do not attend to blocks, nor to one another: their keys and values are computed
once for all anchors. After each anchor a block attends to the rows up to it and to itself. As for
DART, anchors are processed in chunks, the anchor is the last row of the context, and rotary
positions are those in the packed row.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import window_start
from dart_jax.models.cache import KVCache
from dart_jax.models.drafters.block import BlockDrafter
from dart_jax.models.drafters.layer import take_rows
from train.objective.dart_blocks import (
    PartialAttention,
    by_block,
    merge,
    prefix_mask,
    row_index,
    unblock,
)


class ContextRows(NamedTuple):
    """The context.

    Attributes:
      rows: rotated keys and values of all rows, [B, K, T, h], by layer.
      mask: [D], the mask token's embedding.
    """

    rows: KVCache
    mask: jax.Array


def real_rows(
    drafter: BlockDrafter, features: jax.Array, mask: jax.Array, document: jax.Array
) -> ContextRows:
    """Computes every layer's rows of the context.

    Args:
      drafter: bound to its parameters.
      features: [B, T, F], the target's features.
      mask: [D], the mask token's embedding.
      document: int32 [B, T], see `Batch`.
    """
    return ContextRows(drafter.keys(drafter.context(features), row_index(document)), mask)


def draft(
    drafter: BlockDrafter,
    rows: ContextRows,
    embeds: jax.Array,
    document: jax.Array,
    anchors: jax.Array,
    *,
    steps: int,
    successive: bool,
) -> jax.Array:
    """Drafts from a chunk of anchors; arguments and result as for
    `train.objective.dart_blocks.draft`, with `successive` without effect."""
    del successive
    config, (b, c) = drafter.config, anchors.shape
    chex.assert_equal(steps, config.num_positions)
    size = config.block_size
    positions = anchors[:, :, None] + 1 + jnp.arange(size, dtype=jnp.int32)[None, None]
    place, last = positions.reshape(b, c * size), jnp.repeat(anchors, size, axis=1)
    first = take_rows(embeds, anchors).reshape(b * c, 1, -1)
    masks = jnp.broadcast_to(rows.mask.astype(first.dtype), (b * c, size - 1, first.shape[2]))
    x = jnp.concatenate([first, masks], axis=1)
    of_block = positions.reshape(b * c, size)
    for i, (layer, (k, v)) in enumerate(zip(drafter.layers, rows.rows, strict=True)):
        seen = prefix_mask(document, last, window_start(config.decoder.window(i), place))

        def attend(inputs, layer=layer, k=k, v=v, seen=seen, i=i):
            q, own_k, own_v = layer.self_attn.rotated_heads(inputs, of_block)
            q_all = unblock(q, b).reshape(b, q.shape[1], c * size, -1)
            far = PartialAttention.to(q_all, k, v, seen)
            far = far.map(lambda y: by_block(y.reshape(*y.shape[:2], c, size, -1)))
            own = PartialAttention.to(q, own_k, own_v, drafter.block_mask(i, of_block))
            out = merge(far, own).swapaxes(1, 2).reshape(b * c, size, -1)
            return layer.self_attn.o_proj(out.astype(inputs.dtype))

        x = layer.around(x, attend)
    x = x.reshape(b, c, size, -1)
    return x if config.shifted else x[:, :, 1:]
