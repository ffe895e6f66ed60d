"""The DART drafter (docs/method.md, section 2): d positions from one forward of one layer.

Row i joins the target's feature at position i with the embedding of the token at i + 1. Behind the
row that is drafted from, its *anchor*, stand m mask rows; the anchor and its mask rows predict the
d = m + 1 tokens that follow the anchor's own. (Unshifted, the paper's ablation, the mask rows alone
predict, d = m.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.attention import Segment
from dart_jax.models.cache import KVCache, length_mask
from dart_jax.models.draft_layer import DraftLayer, LaterLayer, take_rows
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.layers import INIT, Linear
from dart_jax.models.rope import rotate


class Drafter(DraftLayer):
    """One decoder layer, or a few, over real rows and mask rows; the head is over the draft
    vocabulary.

    `__call__` drafts behind the last row of a sequence; `train.objective.dart_blocks` drafts behind all.
    """

    def __init__(self, config: DrafterConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        d = config.hidden_size
        # Drawn before the layer: a seed's parameters stay what they were.
        self.fc = Linear(3 * config.target_hidden_size, d, dtype=dtype, rngs=rngs)
        self.mask_rep = nnx.Param(INIT(rngs.params(), (2 * d,), dtype))
        super().__init__(config, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            [LaterLayer(config, dtype=dtype, rngs=rngs) for _ in range(1, config.num_hidden_layers)]
        )

    def __call__(
        self,
        features: jax.Array,
        embeds: jax.Array,
        positions: jax.Array,
        last: jax.Array,
        cache: KVCache | None = None,
        length: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """Drafts d positions behind the last real row.

        Args:
          features: [B, T, 3D] target features of T new real rows.
          embeds: [B, T, D] target embeddings of the tokens *after* those rows.
          positions: int32 [B, T].
          last: int32 [B], index of the anchor; rows behind it are padding and never seen.
          cache: keys and values of earlier real rows, layer by layer; None for no prefix.
          length: int32 [B], valid rows of the cache.

        Returns:
          float32 logits [B, d, Vd] and the keys and values of the real rows.
        """
        (b, t, _), m, at = features.shape, self.config.draft_length, last[:, None]
        steps = jnp.arange(1, m + 1, dtype=jnp.int32)[None]
        places = jnp.take_along_axis(positions, at, axis=1) + steps
        places = jnp.concatenate([positions, places], axis=1)
        # Mask rows see the real rows up to the anchor, and each other in order.
        order = jnp.arange(t + m, dtype=jnp.int32)
        row, column = order[None, :, None], order[None, None]
        seen = (column <= row) & ((column >= t) | (column <= at[:, :, None]) | (row < t))

        # Until a layer has run, all mask rows are alike: one stands for them.
        residual = self.fc(features)
        mask_rep = jnp.broadcast_to(self.mask_rep[...], (b, 1, 2 * self.config.hidden_size))
        inputs = jnp.concatenate([self.join(embeds, residual), mask_rep], axis=1)
        x = jnp.concatenate([residual, mask_rep[..., : residual.shape[2]]], axis=1)
        rows = []
        layers = [self, *self.layers]
        for i, layer in enumerate(layers):
            final = layer is layers[-1]
            # How many rows each one behind the real rows stands for.
            masks = m if i == 0 else 1
            k, v = (_repeat_from(y, t, masks, axis=2) for y in layer.keys(inputs))
            k = rotate(k, places, self.config.rope)
            rows.append((k[:, :, :t], v[:, :, :t]))
            here, row_places, row_seen, real = inputs, places, seen, t
            if final:
                x, here, real = _drafting(x, at, t), _drafting(inputs, at, t), 1
                row_places = _drafting(places[..., None], at, t)[..., 0]
                row_seen = _drafting(seen, at, t)
            q = _repeat_from(layer.queries(here), real, masks, axis=2)
            q = rotate(q, row_places, self.config.rope)
            segments = [Segment(q, k, v, row_seen)]
            if cache is not None and length is not None:
                k_old, v_old = cache[i]
                segments.append(Segment(q, k_old, v_old, length_mask(k_old.shape[2], length)))
            x = layer.finish(_repeat_from(x, real, masks, axis=1), segments)
            if not final:
                inputs = self.layers[i].input_layernorm(x)
        return self.logits(x if self.config.shifted else x[:, 1:]), tuple(rows)

    def logits(self, x: jax.Array) -> jax.Array:
        """[..., D] after the last layer -> float32 [..., Vd]."""
        # The reference applies the same final norm twice.
        return self.head(self.norm(self.norm(x)))


def _drafting(rows: jax.Array, at: jax.Array, real: int) -> jax.Array:
    """Of rows [B, T + .., C] the anchor's and the mask rows."""
    return jnp.concatenate([take_rows(rows, at), rows[:, real:]], axis=1)


def _repeat_from(x: jax.Array, start: int, times: int, axis: int) -> jax.Array:
    """Repeats each row behind the first `start` ones."""
    if times == 1:
        return x
    kept, repeated = jnp.split(x, [start], axis=axis)
    return jnp.concatenate([kept, jnp.repeat(repeated, times, axis=axis)], axis=axis)
