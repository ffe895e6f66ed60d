"""The DART drafter (docs/method.md, section 2): d positions in one forward pass of one layer.

Row i joins the target's feature at position i with the embedding of the token at i + 1. The m mask
rows follow the *anchor*, the row that drafting starts from; anchor and mask rows predict the
d = m + 1 tokens after the anchor's own. (Unshifted, an ablation of the paper, only the mask rows
predict: d = m.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.attention.segments import Prefix, Segment, window_start, windowed
from dart_jax.models.cache import Cache, KVCache
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.drafters.layer import DraftLayer, LaterLayer, take_rows
from dart_jax.models.drafters.pairs import PairScores
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.layers import Linear, random_param
from dart_jax.models.native_layer import one_call, run_draft_layer
from dart_jax.models.rope import rotate


class DartDrafter(DraftLayer):
    """One or a few decoder layers over real rows and mask rows; the head is over the draft
    vocabulary.

    `__call__` drafts after the last row of a sequence; `train.objective.dart` drafts after
    every row.
    """

    def __init__(
        self,
        config: DartConfig,
        options: LayerOptions = LayerOptions(),
        *,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None,
    ):
        self.config = config
        d = config.hidden_size
        # Initialised before the layer, so that a seed keeps giving the same parameters.
        self.fc = Linear(config.features_width, d, dtype=dtype, rngs=rngs, split=options.split)
        self.mask_rep = random_param(rngs, (2 * d,), dtype)
        super().__init__(config, options, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            [
                LaterLayer(config, options, dtype=dtype, rngs=rngs)
                for _ in range(1, config.num_hidden_layers)
            ]
        )
        if config.pair_rank:
            sizes = (config.draft_vocab_size, config.draft_vocab_size)
            self.pairs = PairScores(sizes, config.pair_rank, d, dtype=dtype, rngs=rngs)

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
          cache: keys and values of earlier real rows, per layer; None for no prefix.
          length: int32 [B], valid rows of the cache.

        Returns:
          [B, d, D], which `head` and the pair scores read, and the keys and values of the real
          rows.
        """
        (b, t, _), m, at = features.shape, self.config.draft_length, last[:, None]
        steps = jnp.arange(1, m + 1, dtype=jnp.int32)[None]
        mask_positions = jnp.take_along_axis(positions, at, axis=1) + steps
        all_positions = jnp.concatenate([positions, mask_positions], axis=1)
        residual = self.project(features)
        if self._native(residual):
            x, row = self._natively(residual, embeds, all_positions, last, cache, length)
            return self.normed(x if self.config.shifted else x[:, 1:]), (row,)
        # Mask rows see the real rows up to the anchor, and each other causally.
        order = jnp.arange(t + m, dtype=jnp.int32)
        row, column = order[None, :, None], order[None, None]
        seen = (column <= row) & ((column >= t) | (column <= at[:, :, None]) | (row < t))
        window = self.config.sliding_window
        seen = windowed(seen, window_start(window, all_positions), all_positions)

        # Before the first layer all mask rows are identical: one row represents them.
        mask_rep = jnp.broadcast_to(self.mask_rep[...], (b, 1, 2 * self.config.hidden_size))
        inputs = jnp.concatenate([self.join(embeds, residual), mask_rep], axis=1)
        x = jnp.concatenate([residual, mask_rep[..., : residual.shape[2]]], axis=1)
        rows = []
        layers = [self, *self.layers]
        for i, layer in enumerate(layers):
            final = layer is layers[-1]
            # How many mask rows each row after the real rows represents.
            masks = m if i == 0 else 1
            k, v = (_repeat_from(y, t, masks, axis=2) for y in layer.keys(inputs))
            k, v = self.options.rounded(rotate(k, all_positions, self.config.rope), v)
            rows.append((k[:, :, :t], v[:, :, :t]))
            q_inputs, q_positions, q_seen, real = inputs, all_positions, seen, t
            if final:
                x, q_inputs, real = _drafting_rows(x, at, t), _drafting_rows(inputs, at, t), 1
                q_positions = _drafting_rows(all_positions[..., None], at, t)[..., 0]
                q_seen = _drafting_rows(seen, at, t)
            q = _repeat_from(layer.queries(q_inputs), real, masks, axis=2)
            q = rotate(q, q_positions, self.config.rope)
            prefix = Prefix.of(cache, i, length, window_start(window, q_positions))
            x = _repeat_from(x, real, masks, axis=1)
            x = layer.finish(x, [Segment(q, k, v, q_seen)], prefix)
            if not final:
                inputs = self.layers[i].input_layernorm(x)
        return self.normed(x if self.config.shifted else x[:, 1:]), tuple(rows)

    def _native(self, residual: jax.Array) -> bool:
        """Returns True if the C++ core computes the only layer by one call."""
        only = not self.layers
        return only and one_call(self.options, self.o_proj, residual, self.config.head_dim)

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
        """[..., D] after the last layer -> float32 logits [..., Vd]."""
        return self.head(self.normed(x))

    def normed(self, x: jax.Array) -> jax.Array:
        """Normalises what follows the last layer, [..., D], for the head and the pair scores."""
        # The reference applies the same final norm twice.
        return self.norm(self.norm(x))


def _drafting_rows(rows: jax.Array, at: jax.Array, real: int) -> jax.Array:
    """Selects the anchor and the mask rows of rows [B, T + .., C]."""
    return jnp.concatenate([take_rows(rows, at), rows[:, real:]], axis=1)


def _repeat_from(x: jax.Array, start: int, times: int, axis: int) -> jax.Array:
    """Repeats each row after the first `start` ones."""
    if times == 1:
        return x
    first, rest = jnp.split(x, [start], axis=axis)
    return jnp.concatenate([first, jnp.repeat(rest, times, axis=axis)], axis=axis)
