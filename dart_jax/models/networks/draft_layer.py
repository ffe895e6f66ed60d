"""The decoder layer and the head of DART and EAGLE-3 drafters.

The layer's inputs are twice as wide as the residual stream: the embedding of a token, concatenated
with the hidden state of the position before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.segments import Prefix, Segment, split_heads
from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.layers.dense import GatedMLP, Init, Linear, RMSNorm
from dart_jax.models.sharding.collectives import local_shard


class DraftLayer(nnx.Module):
    """The decoder layer, the final norm and the head, and the drafter's own embedding if it has
    one; drafters add the input projection."""

    fc: Linear

    def __init__(self, config: DraftLayerConfig, options: LayerOptions, init: Init):
        d, h, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        self.options = options
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = Linear(2 * d, self.heads * h, init)
        if self.options.fused:
            self.kv_proj = Linear(2 * d, 2 * self.kv_heads * h, init)
        else:
            self.k_proj = Linear(2 * d, self.kv_heads * h, init)
            self.v_proj = Linear(2 * d, self.kv_heads * h, init)
        self.o_proj = Linear(self.heads * h, d, init, split=options.split)
        self.post_attention_layernorm = RMSNorm(d, eps, init)
        self.mlp = GatedMLP(d, config.intermediate_size, options, init)
        self.hidden_norm = RMSNorm(d, eps, init)
        self.input_layernorm = RMSNorm(d, eps, init)
        self.norm = RMSNorm(d, eps, init)
        self.lm_head = Linear(d, config.draft_vocab_size, init)
        self.own_embedding = config.own_embedding
        if config.own_embedding:
            self.embed_tokens = init.random(config.vocab_size, d)

    def queries(self, inputs: jax.Array) -> jax.Array:
        """Queries [B, H, T, h] of inputs [B, T, 2D], before rotation."""
        return split_heads(self.q_proj(inputs), self.heads)

    def keys(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys before rotation, and values, of inputs [B, T, 2D]: each [B, K, T, h]."""
        if self.options.fused:
            k, v = jnp.split(self.kv_proj(inputs), 2, axis=-1)
        else:
            k, v = self.k_proj(inputs), self.v_proj(inputs)
        return split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)

    def finish(
        self, residual: jax.Array, segments: Sequence[Segment], prefix: Prefix | None = None
    ) -> jax.Array:
        """Attention and MLP on the residual stream; returns [B, T, D], not yet normalised."""
        return self.after_attention(
            residual, attend(segments, prefix, kernel=self.options.attention)
        )

    def after_attention(self, residual: jax.Array, attended: jax.Array) -> jax.Array:
        """Output projection of the attention output [B, T, H * h], then MLP; returns [B, T, D]."""
        x = self.o_proj(attended, residual)
        return self.mlp(self.post_attention_layernorm.normed(x), x)

    def embedding(
        self, targets: Callable[[jax.Array], jax.Array]
    ) -> Callable[[jax.Array], jax.Array]:
        """Returns the embedding that the drafter reads, int32 [...] -> [..., D]: its own, or else
        the target's."""
        if not self.own_embedding:
            return targets
        return lambda tokens: embedded(self.embed_tokens.get_value(), tokens, self.norm)

    def join(self, embeds: jax.Array, hidden: jax.Array) -> jax.Array:
        """Normalises and concatenates two halves [B, T, D] to the layer's inputs [B, T, 2D]."""
        return jnp.concatenate([self.input_layernorm(embeds), self.hidden_norm(hidden)], axis=-1)

    def project(self, features: jax.Array) -> jax.Array:
        """Maps the target's features [..., F] to the residual stream [..., D]."""
        return projected(self.fc, features, self.options)

    def head(self, normed: jax.Array) -> jax.Array:
        """Normalised [..., D] -> float32 logits [..., Vd]; where devices share the drafter, a
        device's part of the draft vocabulary."""
        return self.lm_head.logits(normed)


def embedded(table: jax.Array | Tiles, tokens: jax.Array, norm: RMSNorm) -> jax.Array:
    """Embeds tokens int32 [...] by a drafter's own table [V, D]; returns [..., D], in the dtype of
    its norms."""
    # The target's vocabulary may be padded further; what is drafted after such a token is verified
    # like all else.
    if isinstance(table, Tiles):
        rows = table.rows(jnp.minimum(tokens, table.shape[1] - 1))
    else:
        rows = jnp.take(table, jnp.minimum(tokens, table.shape[0] - 1), axis=0)
    return rows.astype(norm.scale[...].dtype)


def projected(fc: Linear, features: jax.Array, options: LayerOptions) -> jax.Array:
    """Projects the target's features [..., F] to [..., D], where devices share the projection by
    its inputs."""
    return fc(features if options.shards == 1 else local_shard(features, options.shards))


def take_rows(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Gathers rows [B, T, C] at int32 [B, A] -> [B, A, C]."""
    return jnp.take_along_axis(rows, index[:, :, None], axis=1)
