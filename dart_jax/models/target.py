"""The target: a decoder of the Llama family (grouped-query attention, RoPE, SwiGLU or experts).

The same forward pass serves training, prefill, plain decoding and tree verification; they differ
only in the rows, their positions and the mask.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.attention import Segment, attend, split_heads
from dart_jax.models.cache import KVCache, length_mask
from dart_jax.models.config import TargetConfig
from dart_jax.models.layers import INIT, Linear, Params, RMSNorm, SwiGLU
from dart_jax.models.moe import MoE
from dart_jax.models.rope import rotate

# Keys, values and `length_mask` of the cached rows that a layer attends to; empty without a prefix.
CachedRows = list[tuple[jax.Array, jax.Array, jax.Array]]


class TargetOutput(NamedTuple):
    """Output of a forward pass over T new rows.

    Attributes:
      hidden: [B, T, D], after the final norm; the input of `Target.logits`.
      features: [B, T, 3D], the residual stream that enters the three feature layers.
      rows: keys and values of the new rows, to be appended to the cache.
    """

    hidden: jax.Array
    features: jax.Array
    rows: KVCache


class Attention(nnx.Module):
    """Self-attention; Qwen3 normalises queries and keys per head before RoPE."""

    def __init__(self, config: TargetConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        d, h = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.rope = config.rope
        self.q_proj = Linear(d, self.heads * h, dtype=dtype, rngs=rngs)
        self.k_proj = Linear(d, self.kv_heads * h, dtype=dtype, rngs=rngs)
        self.v_proj = Linear(d, self.kv_heads * h, dtype=dtype, rngs=rngs)
        self.o_proj = Linear(self.heads * h, d, dtype=dtype, rngs=rngs)
        self.qk_norm = config.qk_norm
        if self.qk_norm:
            self.q_norm = RMSNorm(h, config.rms_norm_eps, dtype=dtype)
            self.k_norm = RMSNorm(h, config.rms_norm_eps, dtype=dtype)

    def __call__(
        self, x: jax.Array, positions: jax.Array, mask: jax.Array, cached: CachedRows
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        q = split_heads(self.q_proj(x), self.heads)
        k = split_heads(self.k_proj(x), self.kv_heads)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, positions, self.rope), rotate(k, positions, self.rope)
        v = split_heads(self.v_proj(x), self.kv_heads)
        out = attend([*(Segment(q, *prefix) for prefix in cached), Segment(q, k, v, mask)])
        return self.o_proj(out), (k, v)


class DecoderLayer(nnx.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: TargetConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(d, eps, dtype=dtype)
        self.self_attn = Attention(config, dtype=dtype, rngs=rngs)
        self.post_attention_layernorm = RMSNorm(d, eps, dtype=dtype)
        if config.moe is not None and config.is_sparse(layer):
            self.mlp = MoE(d, config.moe, dtype=dtype, rngs=rngs)
        else:
            self.mlp = SwiGLU(d, config.intermediate_size, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: jax.Array, positions: jax.Array, mask: jax.Array, cached: CachedRows
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        with jax.named_scope("attention"):
            out, row = self.self_attn(self.input_layernorm(x), positions, mask, cached)
            x = x + out
        with jax.named_scope("mlp"):
            return x + self.mlp(self.post_attention_layernorm(x)), row


class Target(nnx.Module):
    """The decoder. Defined with NNX, run as a pure function through `dart_jax.models.pure.bind`."""

    def __init__(self, config: TargetConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        self.embed_tokens = nnx.Param(INIT(rngs.params(), shape, dtype))
        self.layers = nnx.List(
            [
                DecoderLayer(config, i, dtype=dtype, rngs=rngs)
                for i in range(config.num_hidden_layers)
            ]
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array,
        cache: KVCache | None = None,
        length: jax.Array | None = None,
    ) -> TargetOutput:
        """Runs T new rows after a cached prefix, without writing to the cache.

        Args:
          tokens: int32 [B, T].
          positions: int32 [B, T], rotary positions.
          mask: bool, broadcastable to [B, T, T]; row t sees new row s where [b, t, s] is set.
            Each row must see itself.
          cache: all layers' keys and values, capacity S; None for no prefix.
          length: int32 [B], valid rows of the cache; every new row sees all of them.
        """
        x = self.embed(tokens)
        features = []
        rows = []
        for i, layer in enumerate(self.layers):
            if i in self.config.feature_layers:
                features.append(x)
            cached = []
            if cache is not None and length is not None:
                k, v = cache[i]
                cached = [(k, v, length_mask(k.shape[2], length))]
            with jax.named_scope(f"layer_{i}"):
                x, row = layer(x, positions, mask, cached)
            rows.append(row)
        features = jnp.concatenate(features or [x[..., :0]], axis=-1)
        return TargetOutput(self.norm(x), features, tuple(rows))

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Token embeddings [..., D]; the drafter shares them."""
        return jnp.take(self.embed_tokens[...], tokens, axis=0)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[..., D] after the final norm -> float32 [..., V]."""
        with jax.named_scope("lm_head"):
            if self.config.tie_word_embeddings:
                table, axes = self.embed_tokens[...], "...d,vd->...v"
            else:
                table, axes = self.lm_head.kernel[...], "...d,dv->...v"
            # Rounding logits to bfloat16 would make ties common.
            return jnp.einsum(axes, hidden, table, preferred_element_type=jnp.float32)


def untie(config: TargetConfig, params: Params) -> tuple[TargetConfig, Params]:
    """Gives a tied head its own kernel [D, V]; returns an untied model unchanged.

    On CPU the product with the transposed table [V, D] takes three times as long for the few rows
    of a tree; the copy costs V * D weights.
    """
    if not config.tie_word_embeddings:
        return config, params
    head = {"kernel": params["embed_tokens"].T}
    return dataclasses.replace(config, tie_word_embeddings=False), {**params, "lm_head": head}
