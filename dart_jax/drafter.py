"""The DART drafter (docs/method.md, section 2): d positions from one forward of one layer.

Row i joins the target's feature at position i with the embedding of the token at i + 1. Behind a
row that is drafted from, its *anchor*, stand m mask rows; the anchor and its mask rows predict the
d = m + 1 tokens that follow the anchor's own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.cache import KVCache, visible
from dart_jax.config import DrafterConfig
from dart_jax.draft_layer import DraftLayer, take_rows
from dart_jax.layers import INIT, Linear, Part, split_heads
from dart_jax.rope import rotate


class Drafter(DraftLayer):
    """One decoder layer over the anchors and their mask rows; heads over the draft vocabulary.

    Drafting passes one anchor, the last real row; training passes many, whose blocks see their own
    prefix and themselves and never another block.
    """

    def __init__(self, config: DrafterConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        d = config.hidden_size
        # Drawn before the layer: a seed's parameters stay what they were.
        self.fc = Linear(3 * config.target_hidden_size, d, dtype=dtype, rngs=rngs)
        self.mask_rep = nnx.Param(INIT(rngs.params(), (2 * d,), dtype))
        super().__init__(config, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        features: jax.Array,
        embeds: jax.Array,
        positions: jax.Array,
        anchors: jax.Array,
        cache: KVCache | None = None,
        length: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """Drafts d positions behind every anchor.

        Args:
          features: [B, T, 3D] target features of T new real rows.
          embeds: [B, T, D] target embeddings of the tokens *after* those rows.
          positions: int32 [B, T].
          anchors: int32 [B, A], indices into the T rows; an anchor sees the rows up to itself.
          cache: keys and values of earlier real rows; None for no prefix.
          length: int32 [B], valid rows of the cache.

        Returns:
          float32 logits [B, A, d, Vd] and the keys and values of the real rows.
        """
        config = self.config
        b, t, _ = features.shape
        d, m, n_anchors = config.num_positions, config.draft_length, anchors.shape[1]
        residual = self.fc(features)
        inputs = self.join(embeds, residual)
        mask_row = jnp.broadcast_to(self.mask_rep[...], (b, 1, 2 * config.hidden_size))

        # One projection serves the real rows and the mask row: all mask rows have the same input
        # and differ by their rotary position alone.
        rows = jnp.concatenate([inputs, mask_row], axis=1)
        k = split_heads(self.k_proj(rows), config.num_key_value_heads)
        v = split_heads(self.v_proj(rows), config.num_key_value_heads)
        k_real, v_real = rotate(k[:, :, :t], positions, config.rope), v[:, :, :t]
        anchored = jnp.concatenate([take_rows(inputs, anchors), mask_row], axis=1)
        q = split_heads(self.q_proj(anchored), config.num_attention_heads)
        q = _with_masks(q, n_anchors, m, axis=2)

        offset = jnp.tile(jnp.arange(d, dtype=jnp.int32), n_anchors)[None]
        anchor = jnp.repeat(anchors, d, axis=1)
        absolute = jnp.repeat(jnp.take_along_axis(positions, anchors, axis=1), d, axis=1) + offset
        q_real = rotate(q, absolute, config.rope)
        index = jnp.arange(t, dtype=jnp.int32)
        parts = [Part(q_real, k_real, v_real, index[None, None] <= anchor[:, :, None])]
        if cache is not None and length is not None:
            ((k_old, v_old),) = cache
            parts.append(Part(q_real, k_old, v_old, visible(k_old.shape[2], length)))
        if m:
            # Inside a block only distances count, so one set of mask keys serves every anchor.
            steps = jnp.arange(1, d, dtype=jnp.int32)[None]
            q_block = rotate(q, jnp.broadcast_to(offset, absolute.shape), config.rope)
            k_block = _repeat(k[:, :, t:], m)
            k_block = rotate(k_block, jnp.broadcast_to(steps, (b, m)), config.rope)
            seen = steps[:, None] <= offset[:, :, None]
            parts.append(Part(q_block, k_block, _repeat(v[:, :, t:], m), seen))

        stream = jnp.concatenate(
            [take_rows(residual, anchors), mask_row[..., : config.hidden_size]], axis=1
        )
        x = self.finish(_with_masks(stream, n_anchors, m, axis=1), parts)
        # The reference applies the same final norm twice.
        logits = self.lm_head(self.norm(self.norm(x))).astype(jnp.float32)
        return logits.reshape(b, n_anchors, d, -1), ((k_real, v_real),)


def _repeat(row: jax.Array, times: int) -> jax.Array:
    """[B, K, 1, h] -> [B, K, times, h]."""
    return jnp.broadcast_to(row, (*row.shape[:2], times, row.shape[3]))


def _with_masks(x: jax.Array, anchors: int, masks: int, axis: int) -> jax.Array:
    """A anchors and one mask row along `axis` -> A blocks of an anchor and its m mask rows."""
    block = [[a, *[anchors] * masks] for a in range(anchors)]
    return jnp.take(x, jnp.asarray(block, jnp.int32).reshape(-1), axis=axis)
