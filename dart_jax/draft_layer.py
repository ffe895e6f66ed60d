"""The decoder layer and head that DART's and EAGLE-3's drafters have in common.

Its inputs are twice as wide as its residual stream: the embedding of a token beside what is known
about the position before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.config import DraftLayerConfig
from dart_jax.layers import Linear, Part, RMSNorm, SwiGLU, attend


class DraftLayer(nnx.Module):
    """One decoder layer, a final norm and a head; drafters add what feeds them."""

    def __init__(self, config: DraftLayerConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        d, h, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.hidden_norm = RMSNorm(d, eps, dtype=dtype)
        self.input_layernorm = RMSNorm(d, eps, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(d, eps, dtype=dtype)
        self.q_proj = Linear(2 * d, heads * h, dtype=dtype, rngs=rngs)
        self.k_proj = Linear(2 * d, kv_heads * h, dtype=dtype, rngs=rngs)
        self.v_proj = Linear(2 * d, kv_heads * h, dtype=dtype, rngs=rngs)
        self.o_proj = Linear(heads * h, d, dtype=dtype, rngs=rngs)
        self.mlp = SwiGLU(d, config.intermediate_size, dtype=dtype, rngs=rngs)
        self.norm = RMSNorm(d, eps, dtype=dtype)
        self.lm_head = Linear(d, config.draft_vocab_size, dtype=dtype, rngs=rngs)

    def join(self, embeds: jax.Array, hidden: jax.Array) -> jax.Array:
        """The layer's inputs, [B, T, 2D], from two halves [B, T, D]."""
        return jnp.concatenate([self.input_layernorm(embeds), self.hidden_norm(hidden)], axis=-1)

    def finish(self, residual: jax.Array, parts: Sequence[Part]) -> jax.Array:
        """Attention and MLP on the residual stream, [B, T, D], not yet normed."""
        x = residual + self.o_proj(attend(parts))
        return x + self.mlp(self.post_attention_layernorm(x))


def take_rows(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Rows [B, T, C] at int32 [B, A] -> [B, A, C]."""
    return jnp.take_along_axis(rows, index[:, :, None], axis=1)
