"""The DART drafter (docs/method.md, section 2): d positions in one forward pass of one layer.

Row i joins the target's feature at position i with the embedding of the token at i + 1. The m mask
rows follow the *anchor*, the row that drafting starts from; anchor and mask rows predict the
d = m + 1 tokens after the anchor's own. (Unshifted, an ablation of the paper, only the mask rows
predict: d = m.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import Prefix, Segment, window_start, windowed
from dart_jax.models.cache import Cache, KVCache
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.layers.dense import Init, Linear
from dart_jax.models.networks.draft_layer import DraftLayer, take_rows
from dart_jax.models.networks.native_layer import one_call, run_draft_layer
from dart_jax.models.networks.pairs import PairScores
from dart_jax.models.rope import rotate


class DartDrafter(DraftLayer):
    """One decoder layer over real rows and mask rows; the head is over the draft vocabulary.

    `__call__` drafts after the last row of a sequence; `train.objective.dart` drafts after
    every row.
    """

    def __init__(self, config: DartConfig, options: LayerOptions, init: Init):
        self.config = config
        d = config.hidden_size
        # Initialised before the layer, so that a seed keeps giving the same parameters.
        self.fc = Linear(config.features_width, d, init, split=options.split)
        self.mask_rep = init.random(2 * d)
        super().__init__(config, options, init)
        if config.pair_rank:
            sizes = (config.draft_vocab_size, config.draft_vocab_size)
            self.pairs = PairScores(sizes, config.pair_rank, d, "residual", init)

    def __call__(
        self,
        features: jax.Array,
        embeds: jax.Array,
        positions: jax.Array,
        last: jax.Array,
        cache: Cache | None = None,
        length: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """Computes what the head reads of the d positions after the last real row.

        Args:
          features: [B, T, 3D] target features of T new real rows.
          embeds: [B, T, D] embeddings of the tokens *after* those rows (see `embedding`).
          positions: int32 [B, T].
          last: int32 [B], index of the anchor; rows after it are padding and never seen.
          cache: keys and values of earlier real rows, per layer, if any.
          length: int32 [B], valid rows of the cache.

        Returns:
          [B, d, D], which `head` and the pair scores read, and the keys and values of the real
          rows.
        """
        (b, t, _), m, at = features.shape, self.config.draft_length, last[:, None]
        anchor = jnp.take_along_axis(positions, at, axis=1)
        drafting = anchor + jnp.arange(m + 1, dtype=jnp.int32)[None]
        all_positions = jnp.concatenate([positions, drafting[:, 1:]], axis=1)
        residual = self.project(features)
        if one_call(self.options, self.o_proj, residual, self.config.head_dim):
            x, row = self._natively(residual, embeds, all_positions, last, cache, length)
            return self.normed(x if self.config.shifted else x[:, 1:]), (row,)
        # The anchor and the mask rows see the real rows up to it, and each other causally.
        order = jnp.arange(t + m, dtype=jnp.int32)
        masks = jnp.broadcast_to(order[None, t:], (b, m))
        row, column = jnp.concatenate([at, masks], axis=1)[:, :, None], order[None, None]
        seen = (column <= row) & ((column >= t) | (column <= at[:, :, None]))
        first = window_start(self.config.sliding_window, drafting)
        seen = windowed(seen, first, all_positions)

        # All mask rows have the same inputs: one row represents them.
        mask_rep = jnp.broadcast_to(self.mask_rep[...], (b, 1, 2 * self.config.hidden_size))
        inputs = self.join(embeds, residual)
        keys = self.keys(jnp.concatenate([inputs, mask_rep], axis=1))
        k, v = (_repeat_from(y, t, m, axis=2) for y in keys)
        k, v = self.options.rounded(rotate(k, all_positions, self.config.rope), v)
        q = self.queries(jnp.concatenate([take_rows(inputs, at), mask_rep], axis=1))
        q = rotate(_repeat_from(q, 1, m, axis=2), drafting, self.config.rope)
        x = jnp.concatenate([take_rows(residual, at), mask_rep[..., : residual.shape[2]]], axis=1)
        x = _repeat_from(x, 1, m, axis=1)
        x = self.finish(x, [Segment(q, k, v, seen)], Prefix.of(cache, 0, length, first))
        rows = k[:, :, :t], v[:, :, :t]
        return self.normed(x if self.config.shifted else x[:, 1:]), (rows,)

    def _natively(
        self,
        residual: jax.Array,
        embeds: jax.Array,
        positions: jax.Array,
        last: jax.Array,
        cache: Cache | None,
        length: jax.Array | None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Computes the layer by the C++ core: what follows it, [B, 1 + m, D], and the rows."""
        norms = self.input_layernorm, self.hidden_norm, self.post_attention_layernorm
        mlp = self.mlp.gate_up_proj, self.mlp.down_proj
        return run_draft_layer(
            [self.mask_rep[...], *(norm.scale[...] for norm in norms)],
            [self.q_proj, self.kv_proj, self.o_proj, *mlp],
            embeds.astype(jnp.float32),
            residual,
            self.config.rope.rotation(positions, self.config.head_dim),
            last,
            Prefix.of(cache, 0, length),
            kv_heads=self.kv_heads,
            kv_dtype=self.options.cache_dtype(residual.dtype),
            eps=self.norm.eps,
            window=self.config.sliding_window,
        )

    def logits(self, x: jax.Array) -> jax.Array:
        """[..., D] after the layer -> float32 logits [..., Vd]."""
        return self.head(self.normed(x))

    def normed(self, x: jax.Array) -> jax.Array:
        """Normalises what follows the layer, [..., D], for the head and the pair scores."""
        # The reference applies the same final norm twice.
        return self.norm(self.norm(x))


def _repeat_from(x: jax.Array, start: int, times: int, axis: int) -> jax.Array:
    """Repeats each row after the first `start` ones."""
    if times == 1:
        return x
    first, rest = jnp.split(x, [start], axis=axis)
    return jnp.concatenate([first, jnp.repeat(rest, times, axis=axis)], axis=axis)
