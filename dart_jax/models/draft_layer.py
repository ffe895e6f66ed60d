"""The decoder layers and the head that DART's and EAGLE-3's drafters have in common.

The first layer's inputs are twice as wide as the residual stream: the embedding of a token beside
what is known about the position before it. Later ones are ordinary.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.attention import Segment, attend, split_heads
from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.layers import Linear, RMSNorm, SwiGLU


class Layer(nnx.Module):
    """Attention and MLP on the residual stream; subclasses say how the inputs come from it."""

    def __init__(self, config: DraftLayerConfig, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        d, h = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = Linear(width, self.heads * h, dtype=dtype, rngs=rngs)
        self.k_proj = Linear(width, self.kv_heads * h, dtype=dtype, rngs=rngs)
        self.v_proj = Linear(width, self.kv_heads * h, dtype=dtype, rngs=rngs)
        self.o_proj = Linear(self.heads * h, d, dtype=dtype, rngs=rngs)
        self.post_attention_layernorm = RMSNorm(d, config.rms_norm_eps, dtype=dtype)
        self.mlp = SwiGLU(d, config.intermediate_size, dtype=dtype, rngs=rngs)

    def queries(self, inputs: jax.Array) -> jax.Array:
        """[B, H, T, h] of inputs [B, T, C], not yet rotated."""
        return split_heads(self.q_proj(inputs), self.heads)

    def keys(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys, not yet rotated, and values of inputs [B, T, C], each [B, K, T, h]."""
        return (
            split_heads(self.k_proj(inputs), self.kv_heads),
            split_heads(self.v_proj(inputs), self.kv_heads),
        )

    def finish(self, residual: jax.Array, segments: Sequence[Segment]) -> jax.Array:
        """Attention and MLP on the residual stream, [B, T, D], not yet normed."""
        return self.after_attention(residual, attend(segments))

    def after_attention(self, residual: jax.Array, attended: jax.Array) -> jax.Array:
        """Output projection of what attention gave, [B, T, H * h], and MLP: [B, T, D]."""
        x = residual + self.o_proj(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


class LaterLayer(Layer):
    """A decoder layer behind the first."""

    def __init__(self, config: DraftLayerConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        super().__init__(config, config.hidden_size, dtype=dtype, rngs=rngs)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)


class DraftLayer(Layer):
    """The first decoder layer, the final norm and the head; drafters add what feeds them."""

    def __init__(self, config: DraftLayerConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        d, eps = config.hidden_size, config.rms_norm_eps
        super().__init__(config, 2 * d, dtype=dtype, rngs=rngs)
        self.hidden_norm = RMSNorm(d, eps, dtype=dtype)
        self.input_layernorm = RMSNorm(d, eps, dtype=dtype)
        self.norm = RMSNorm(d, eps, dtype=dtype)
        self.lm_head = Linear(d, config.draft_vocab_size, dtype=dtype, rngs=rngs)

    def join(self, embeds: jax.Array, hidden: jax.Array) -> jax.Array:
        """The layer's inputs, [B, T, 2D], from two halves [B, T, D]."""
        return jnp.concatenate([self.input_layernorm(embeds), self.hidden_norm(hidden)], axis=-1)

    def head(self, normed: jax.Array) -> jax.Array:
        """[..., D] after the norm -> float32 [..., Vd]."""
        # Rounding logits to bfloat16 would make ties common.
        kernel = self.lm_head.kernel[...]
        return jnp.einsum("...d,dv->...v", normed, kernel, preferred_element_type=jnp.float32)


def take_rows(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Rows [B, T, C] at int32 [B, A] -> [B, A, C]."""
    return jnp.take_along_axis(rows, index[:, :, None], axis=1)
