"""Block drafters: DFlash, DSpark, DFlash2 and JetSpec (docs/method.md, section 8).

Layers like a Qwen3 target's run over a block: a sequence's newest token, the *anchor*, and mask
tokens after it. In every layer queries come from the block, keys and values from the block and from
the context: all positions before the anchor, each one row made of the target's features. Only
context rows are cached; the block's are dropped after each draft.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from dart_jax.models.attention.segments import Prefix, softcap, window_start
from dart_jax.models.cache import Cache, KVCache
from dart_jax.models.drafter_config import BlockConfig
from dart_jax.models.kernels.inputs import Inputs
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.layers.dense import Init, Linear, RMSNorm
from dart_jax.models.networks.draft_layer import embedded, projected
from dart_jax.models.networks.pairs import PairScores
from dart_jax.models.networks.target import DecoderLayer, run_layers


class Convolution(nnx.Module):
    """DFlash2's convolution of two taps around attention or MLP: a row reads itself and the row
    before it in the block, by factors of each channel, plus some of each group of channels that
    the row itself determines.

    Attributes:
      base_kernel: [2, 2, D]: before and after, by tap: the row itself, the row before it.
      kernel_projection: from a row to the factors of its groups, [D, 2 * 2 * G].
    """

    def __init__(self, d: int, group: int, init: Init):
        self.groups = d // group
        self.base_kernel = nnx.Param(
            jnp.zeros((2, 2, d), init.dtype).at[:, 0].set(1)  # leaves all as it is
        )
        self.kernel_projection = Linear(d, 4 * self.groups, init)

    def factors(self, x: jax.Array) -> jax.Array:
        """Returns the factors of every row's channels [B, T, D]: [2, 2, B, T, D]."""
        own = self.kernel_projection(x).reshape(*x.shape[:2], 2, 2, self.groups)
        own = jnp.repeat(own, x.shape[2] // self.groups, axis=-1)
        base = self.base_kernel[...][:, :, None, None].astype(own.dtype)
        return base + jnp.moveaxis(own, (2, 3), (0, 1))


def convolved(x: jax.Array, factors: jax.Array) -> jax.Array:
    """Sums each row [B, T, D] and the one before it by factors [2, B, T, D]."""
    before = jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0)))
    return (factors[0] * x + factors[1] * before).astype(x.dtype)


class BlockLayer(DecoderLayer):
    """A decoder layer, with convolutions around attention and MLP if the drafter has them."""

    def __init__(self, config: BlockConfig, layer: int, options: LayerOptions, init: Init):
        super().__init__(config.decoder, layer, options, init)
        self.convolves = config.conv_group_size is not None
        if config.conv_group_size is not None:
            d, group = config.hidden_size, config.conv_group_size
            self.attention_conv = Convolution(d, group, init)
            self.mlp_conv = Convolution(d, group, init)

    def is_native(self, x: jax.Array) -> bool:
        return not self.convolves and super().is_native(x)

    def around(
        self, x: jax.Array, attend: Callable[[Inputs, jax.Array | None], jax.Array]
    ) -> jax.Array:
        if not self.convolves:
            return super().around(x, attend)
        inputs = self.input_layernorm(x)
        before, after = self.attention_conv.factors(inputs)
        x = x + convolved(attend(convolved(inputs, before), None), after)
        inputs = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.factors(inputs)
        return x + convolved(self.mlp(convolved(inputs, before)), after)


class BlockDrafter(nnx.Module):
    """The drafter. Its embedding and head are the target's unless it has its own."""

    def __init__(self, config: BlockConfig, options: LayerOptions, init: Init):
        self.config = config
        self.options = options
        d, eps = config.hidden_size, config.rms_norm_eps
        self.fc = Linear(config.features_width, d, init, split=options.split)
        self.hidden_norm = RMSNorm(d, eps, init)
        self.layers = nnx.List(
            [BlockLayer(config, i, options, init) for i in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(d, eps, init)
        if config.own_head:
            self.lm_head = Linear(d, config.draft_vocab_size, init)
        if config.own_embedding:
            self.embed_tokens = init.random(config.vocab_size, d)
        if config.pair_rank:
            sizes = (config.vocab_size, config.draft_vocab_size)
            self.pairs = PairScores(sizes, config.pair_rank, d, config.pair_gate, init)
        if config.confidence is not None:
            width = d + config.pair_rank * (config.confidence == "pairs")
            self.confidence = Confidence(width, init)

    def embedding(
        self, targets: Callable[[jax.Array], jax.Array]
    ) -> Callable[[jax.Array], jax.Array]:
        """Returns the embedding that the drafter reads, int32 [...] -> [..., D]: its own, or else
        the target's, scaled."""

        def embed(tokens: jax.Array) -> jax.Array:
            if not self.config.own_embedding:
                return targets(tokens)
            return embedded(self.embed_tokens.get_value(), tokens, self.norm)

        scale = self.config.input_embedding_scale
        return embed if scale == 1 else lambda tokens: embed(tokens) * scale

    def context(self, features: jax.Array) -> jax.Array:
        """Makes context rows that all layers read, [B, T, D], of target features [B, T, F]."""
        return self.hidden_norm(projected(self.fc, features, self.options))

    def keys(self, context: jax.Array, positions: jax.Array) -> KVCache:
        """Keys and values of context rows [B, T, D] at positions int32 [B, T], by layer."""
        rows = []
        for layer in self.layers:
            _, k, v = layer.self_attn.rotated_heads(context, positions)
            rows.append((k, v))
        return tuple(rows)

    def __call__(
        self, embeds: jax.Array, positions: jax.Array, cache: Cache, length: jax.Array
    ) -> jax.Array:
        """Runs the block of R rows.

        Args:
          embeds: [B, R, D], embeddings of the anchor and the mask tokens (see `embedding`).
          positions: int32 [B, R].
          cache: keys and values of the context, per layer.
          length: int32 [B], its rows, at positions 0 to length - 1.

        Returns:
          What the head reads in the rows that predict, [B, d, D]; d = R - 1 if the anchor does not.
        """
        seen = []
        for i in range(len(self.layers)):
            first = window_start(self.config.decoder.window(i), positions)
            seen.append((self.block_mask(i, positions), Prefix.of(cache, i, length, first)))
        x, _ = run_layers(list(self.layers), embeds, positions, seen)
        return self.normed(x if self.config.shifted else x[:, 1:])

    def block_mask(self, layer: int, positions: jax.Array) -> jax.Array:
        """Returns the mask of a block's rows in a layer, bool [B, R, R] or [1, R, R], given their
        positions int32 [B, R]."""
        rows = positions.shape[1]
        seen = jnp.ones((1, rows, rows), bool)
        if layer in self.config.causal_layers:
            seen = jnp.tril(seen)
        window = self.config.decoder.window(layer)
        if window is not None:
            seen = seen & (jnp.abs(positions[:, None] - positions[:, :, None]) < window)
        return seen

    def normed(self, x: jax.Array) -> jax.Array:
        """Normalises what follows the last layer, [..., D], for the head and the pair scores."""
        return self.norm(x)

    def head(self, normed: jax.Array) -> jax.Array:
        """Normalised [..., D] -> float32 logits [..., Vd] of the drafter's own head; where devices
        share the drafter, a device's part of the draft vocabulary."""
        return self.lm_head.logits(normed)

    def logits(self, normed: jax.Array, targets: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Normalised [..., D] -> float32 logits [..., Vd] of the drafter's own head, or else the
        target's, without pair scores."""
        logits = self.head(normed) if self.config.own_head else targets(normed)
        if self.config.output_multiplier != 1:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else softcap(logits, cap)


class Confidence(nnx.Module):
    """Predicts the probability that a drafted token is accepted if those before it are."""

    def __init__(self, width: int, init: Init):
        self.weight = init.random(1, width)
        self.bias = init.full(0, 1)

    def __call__(self, normed: jax.Array, first: jax.Array | None) -> jax.Array:
        """Logits, float32 [...], of what the head reads, [..., D], and the factors of the token
        before, [..., r], for a drafter whose confidence reads them."""
        inputs = normed if first is None else jnp.concatenate([normed, first], axis=-1)
        weight, bias = (x[...].astype(jnp.float32) for x in (self.weight, self.bias))
        return inputs.astype(jnp.float32) @ weight[0] + bias[0]
