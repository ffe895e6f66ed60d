"""The target: a decoder of the Llama family (grouped-query attention, RoPE, GatedMLP or experts).

The same forward pass serves training, prefill, plain decoding and tree verification; they differ
only in the rows, their positions and the mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.native import rotated_heads_native
from dart_jax.models.attention.segments import (
    Prefix,
    Scoring,
    Segment,
    fits_kernels,
    softcap,
    split_heads,
    window_start,
    windowed,
)
from dart_jax.models.attention.triton_heads import HeadNorm, rotated_heads_triton
from dart_jax.models.cache import Cache, KVCache
from dart_jax.models.config import TargetConfig
from dart_jax.models.cpu import or_nothing, used_rows
from dart_jax.models.kernels.inputs import Inputs, computed, source
from dart_jax.models.kernels.matmul import narrowed
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import CORE_ACTIVATIONS, Tiles, described, product
from dart_jax.models.layers.dense import GatedMLP, Init, Linear, RMSNorm
from dart_jax.models.layers.moe import MoE
from dart_jax.models.networks.native_layer import no_prefix, one_call
from dart_jax.models.rope import rotate

# By place of the norms, their names as in `transformers`: before and after attention, before and
# after the MLP.
_NORMS = {
    "before": ("input_layernorm", None, "post_attention_layernorm", None),
    "after": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "both": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}


class TargetOutput(NamedTuple):
    """Output of a forward pass over T new rows.

    Attributes:
      hidden: [B, T, D], after the final norm; the input of `Target.logits`.
      features: [B, T, 3D], the residual stream that enters the three feature layers; D for each
        layer if they are not three.
      rows: keys and values of the new rows, to be appended to the cache.
    """

    hidden: jax.Array
    features: jax.Array
    rows: KVCache


class Attention(nnx.Module):
    """Self-attention; some architectures normalise queries and keys before RoPE: per head, or all
    heads together."""

    def __init__(self, config: TargetConfig, layer: int, options: LayerOptions, init: Init):
        d, h = config.hidden_size, config.head_dim
        self.head_dim = h
        self.options = options
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.rope = config.layer_rope(layer)
        self.scoring = Scoring(config.attention_scale, config.attn_logit_softcapping)
        linear = partial(Linear, init=init)
        if options.fused:
            width = (self.heads + 2 * self.kv_heads) * h
            self.qkv_proj = linear(d, width, bias=config.attention_bias)
        else:
            self.q_proj = linear(d, self.heads * h, bias=config.attention_bias)
            self.k_proj = linear(d, self.kv_heads * h, bias=config.attention_bias)
            self.v_proj = linear(d, self.kv_heads * h, bias=config.attention_bias)
        split = options.split
        self.o_proj = linear(self.heads * h, d, bias=config.attention_out_bias, split=split)
        self.qk_norm = config.architecture.qk_norm
        if self.qk_norm:
            heads = (1, 1) if self.qk_norm == "head" else (self.heads, self.kv_heads)
            split = split and self.qk_norm == "all"
            self.q_norm = _norm(config, heads[0] * h, init, split)
            self.k_norm = _norm(config, heads[1] * h, init, split)

    def __call__(
        self,
        inputs: Inputs,
        positions: jax.Array,
        mask: jax.Array,
        prefix: Prefix | None,
        residual: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        q, k, v = self.rotated_heads(inputs, positions)
        attended = attend([Segment(q, k, v, mask)], prefix, self.scoring, self.options.attention)
        return self.o_proj(attended, residual), (k, v)

    def rotated_heads(
        self, inputs: Inputs, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries [B, H, T, h], and keys and values [B, K, T, h] as they are cached, of rows
        [B, T, D] at positions int32 [B, T]."""
        kernel = self._kernel(source(inputs).dtype)
        if kernel is None:
            q, k, v = self._heads(inputs, positions)
        else:
            norm = None
            if self.qk_norm:
                scales = self.q_norm.scale[...], self.k_norm.scale[...]
                norm = HeadNorm(*scales, self.q_norm.eps, self.q_norm.offset)
            cos, sin = self.rotation(positions)
            q, k, v = kernel(self.qkv_proj(inputs), cos, sin, self.heads, self.kv_heads, norm)
        return q, *self.options.rounded(k, v)

    def _heads(
        self, inputs: Inputs, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        if self.options.fused:
            ends = (self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim)
            q, k, v = jnp.split(self.qkv_proj(inputs), ends, axis=-1)
        else:
            x = computed(inputs)
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.qk_norm == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = split_heads(q, self.heads), split_heads(k, self.kv_heads)
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            q, k = rotate(q, positions, self.rope), rotate(k, positions, self.rope)
        return q, k, split_heads(v, self.kv_heads)

    def _kernel(self, dtype: DTypeLike) -> Callable[..., Any] | None:
        """What makes the heads of the joined projection's output in one call, if it can."""
        kernel = self.options.attention
        if self.options.fused and kernel == "native" and dtype == jnp.float32:
            return rotated_heads_native
        whole = self.rope is not None and self.rope.share == 1 and self.qk_norm != "all"
        if kernel not in ("triton", "interpret") or not self.options.fused or not whole:
            return None
        interpret = kernel == "interpret"
        fits = fits_kernels(self.head_dim)
        return partial(rotated_heads_triton, interpret=interpret) if fits else None

    def rotation(self, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Cosines and sines of the rotation of queries and keys, float32 [B, T, r / 2]."""
        if self.rope is None:
            none = jnp.zeros((*positions.shape, 0), jnp.float32)
            return none, none
        return self.rope.rotation(positions, self.head_dim)


class DecoderLayer(nnx.Module):
    """Attention and MLP, with norms before them, after them, or both."""

    input_layernorm: RMSNorm
    post_attention_layernorm: RMSNorm

    def __init__(self, config: TargetConfig, layer: int, options: LayerOptions, init: Init):
        d = config.hidden_size
        self.multiplier = config.residual_multiplier
        self.norms = _NORMS[config.architecture.norms]
        for name in filter(None, self.norms):
            setattr(self, name, _norm(config, d, init))
        self.self_attn = Attention(config, layer, options, init)
        if config.moe is not None and config.is_sparse(layer):
            self.mlp = MoE(d, config.moe, options, init)
        else:
            self.mlp = GatedMLP(
                d,
                config.intermediate_size,
                options,
                init,
                bias=config.mlp_bias,
                activation=config.hidden_act,
            )

    def __call__(
        self, x: jax.Array, positions: jax.Array, mask: jax.Array, prefix: Prefix | None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        rows = []

        def attend(inputs: Inputs, residual: jax.Array | None) -> jax.Array:
            out, row = self.self_attn(inputs, positions, mask, prefix, residual)
            rows.append(row)
            return out

        return self.around(x, attend), rows[0]

    def around(
        self, x: jax.Array, attend: Callable[[Inputs, jax.Array | None], jax.Array]
    ) -> jax.Array:
        """Runs the layer over rows [B, T, D], except attention with its projections, which `attend`
        computes of its inputs; added to the residual stream, if it is given that."""
        before_attention, after_attention, before_mlp, after_mlp = self.placed_norms()
        # Norms after a layer's parts, and factors, come between products and the residual stream.
        adds = after_mlp is None and self.multiplier == 1
        with jax.named_scope("attention"):
            inputs = x if before_attention is None else before_attention.normed(x)
            out = attend(inputs, x if adds else None)
            if after_attention is not None:
                out = after_attention(out)
            x = out if adds else x + _times(out, self.multiplier)
        with jax.named_scope("mlp"):
            out = self.mlp(x if before_mlp is None else before_mlp.normed(x), x if adds else None)
            if after_mlp is not None:
                out = after_mlp(out)
            return out if adds else x + _times(out, self.multiplier)

    def placed_norms(self) -> list[RMSNorm | None]:
        """Returns the norms before and after attention, and before and after the MLP."""
        return [getattr(self, name) if name else None for name in self.norms]

    def is_native(self, x: jax.Array) -> bool:
        """Returns True if the C++ core computes the layer, and its neighbours, by one call.

        Args:
          x: the residual stream.
        """
        attention = self.self_attn
        dense = isinstance(self.mlp, GatedMLP)
        return dense and one_call(attention.options, attention.o_proj, x, attention.head_dim)

    @property
    def settings(self) -> dict[str, Any]:
        """Attributes of the C++ core's call, which layers in it share."""
        attention, mlp, norm = self.self_attn, self.mlp, self.post_attention_layernorm
        assert isinstance(mlp, GatedMLP)
        return {
            "activation": CORE_ACTIVATIONS[mlp.activation],
            "eps": np.float32(norm.eps),
            "offset": np.float32(norm.offset or 0),
            "multiplier": np.float32(self.multiplier),
            "scale": np.float32(attention.scoring.factor(attention.head_dim)),
            "cap": np.float32(attention.scoring.cap or 0),
        }


def _run_natively(
    layers: Sequence[DecoderLayer],
    x: jax.Array,
    positions: jax.Array,
    seen: Sequence[tuple[jax.Array, Prefix | None]],
) -> tuple[jax.Array, KVCache]:
    """`run_layers` by one call of the C++ core. Rows that `cpu.only_rows` leaves out hold
    anything."""
    (b, t, _), settings = x.shape, layers[0].settings
    assert all(layer.settings == settings for layer in layers)
    arguments: list[jax.Array] = []
    kernels: list[Tiles] = []
    rows: list[jax.ShapeDtypeStruct] = []
    prefix = None
    for layer, (mask, prefix) in zip(layers, seen, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        assert isinstance(mlp, GatedMLP)
        norms = layer.placed_norms()
        norms += [attention.q_norm, attention.k_norm] if attention.qk_norm else [None, None]
        linears = [attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj]
        weights: list[Tiles] = [linear.kernel.get_value() for linear in linears]
        shape = b, attention.kv_heads, t, attention.head_dim
        made = jax.ShapeDtypeStruct(shape, attention.options.cache_dtype(x.dtype))
        prefix = prefix or no_prefix(made)
        arguments += [
            *attention.rotation(positions),
            or_nothing(prefix.first, jnp.int32),
            jnp.broadcast_to(mask, (b, t, t)),
            *(or_nothing(norm and norm.scale[...]) for norm in norms),
            *(or_nothing(linear.bias[...] if linear.has_bias else None) for linear in linears),
            prefix.k,
            prefix.v,
            *(part for kernel in weights for part in kernel.parts),
        ]
        kernels += weights
        rows += [made, made]
    assert prefix is not None
    y, *new = jax.ffi.ffi_call("dart_layers", (jax.ShapeDtypeStruct(x.shape, x.dtype), *rows))(
        x,
        prefix.length.astype(jnp.int32),  # the same in all layers, and so are its pages
        or_nothing(prefix.pages, jnp.int32),
        used_rows(),
        *arguments,
        **settings,
        **described(*kernels),
    )
    return y, tuple(zip(new[::2], new[1::2], strict=True))


def run_layers(
    layers: Sequence[DecoderLayer],
    x: jax.Array,
    positions: jax.Array,
    seen: Sequence[tuple[jax.Array, Prefix | None]],
    first: int = 0,
) -> tuple[jax.Array, KVCache]:
    """Runs layers one after another.

    Args:
      layers: neighbours.
      x: the residual stream, [B, T, D].
      positions: int32 [B, T].
      seen: what the rows of each layer see: its mask and its cached rows.
      first: number of the first one.

    Returns:
      The residual stream after them, and each one's keys and values of the new rows, [B, K, T, h].
    """
    rows: list[tuple[jax.Array, jax.Array]] = []
    pairs = zip(layers, seen, strict=True)
    for native, group in itertools.groupby(pairs, key=lambda pair: pair[0].is_native(x)):
        number = first + len(rows)
        if native:
            together, seen_by = zip(*group, strict=True)
            with jax.named_scope(f"layers_{number}_to_{number + len(together) - 1}"):
                x, new = _run_natively(together, x, positions, seen_by)
            rows += new
        else:
            for i, (layer, sees) in enumerate(group, number):
                with jax.named_scope(f"layer_{i}"):
                    x, row = layer(x, positions, *sees)
                rows.append(row)
    return x, tuple(rows)


class Target(nnx.Module):
    """The decoder. Defined with NNX, run as a pure function through `pure.bind`."""

    def __init__(self, config: TargetConfig, options: LayerOptions, init: Init):
        self.config = config
        self.options = options
        shape = (config.vocab_size, config.hidden_size)
        self.embed_tokens = init.random(*shape)
        self.layers = nnx.List(
            [DecoderLayer(config, i, options, init) for i in range(config.num_hidden_layers)]
        )
        self.norm = _norm(config, config.hidden_size, init)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, init)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array,
        cache: Cache | None = None,
        length: jax.Array | None = None,
        feature_layers: tuple[int, ...] | None = None,
    ) -> TargetOutput:
        """Runs T new rows after a cached prefix, without writing to the cache.

        Args:
          tokens: int32 [B, T].
          positions: int32 [B, T], of the tokens in their sequences: for RoPE and sliding windows.
          mask: bool, broadcastable to [B, T, T]; row t sees new row s where [b, t, s] is set.
            Each row must see itself.
          cache: all layers' keys and values, capacity S, in pages or not; None without a prefix.
          length: int32 [B], valid rows of the cache, which are the tokens at positions 0 to
            length - 1. Every new row sees all of them, and a sliding window only shrinks what a row
            sees.
          feature_layers: static; the layers whose input is captured, None for the config's.
        """
        x = self._inputs(tokens)
        if feature_layers is None:
            feature_layers = self.config.feature_layers
        layers, seen = list(self.layers), []
        for i in range(len(layers)):
            first = window_start(self.config.window(i), positions)
            in_window = windowed(mask, first, positions)
            seen.append((in_window, Prefix.of(cache, i, length, first)))
        features = []
        rows: KVCache = ()
        ends = sorted({0, *feature_layers, len(layers)})
        for begin, end in itertools.pairwise(ends):
            if begin in feature_layers:
                features.append(x)
            x, new = run_layers(layers[begin:end], x, positions, seen[begin:end], begin)
            rows += new
        features = jnp.concatenate(features or [x[..., :0]], axis=-1)
        return TargetOutput(self.norm(x), features, rows)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Token embeddings [..., D] as stored, without the factor that some targets apply to them;
        the drafter shares these."""
        table, dtype = self.embed_tokens.get_value(), self.norm.scale[...].dtype
        if isinstance(table, Tiles):
            return table.rows(tokens).astype(dtype)
        return jnp.take(table, tokens, axis=0).astype(dtype)

    def _inputs(self, tokens: jax.Array) -> jax.Array:
        """Returns the first layer's inputs [B, T, D]."""
        x = self.embed(tokens)
        factor = self.config.embedding_multiplier
        if self.config.architecture.embedding_scaled:
            factor = float(np.asarray(self.config.hidden_size**0.5, x.dtype))
        return _times(x, factor)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[..., D] after the final norm -> float32 [..., V]; where devices share the target, a
        device's part of the vocabulary."""
        with jax.named_scope("lm_head"):
            if self.config.tie_word_embeddings:
                table = self.embed_tokens.get_value()
                if isinstance(table, Tiles):
                    logits = product(hidden.astype(jnp.float32), table)
                else:
                    hidden = narrowed(hidden, table.dtype)
                    logits = jnp.einsum(
                        "...d,vd->...v", hidden, table, preferred_element_type=jnp.float32
                    )
            else:
                logits = self.lm_head.logits(hidden)
            if self.config.logits_scaling != 1:
                logits = logits / self.config.logits_scaling
            cap = self.config.final_logit_softcapping
            return logits if cap is None else softcap(logits, cap)


def _norm(config: TargetConfig, size: int, init: Init, split: bool = False) -> RMSNorm:
    offset = config.architecture.norm_offset
    return RMSNorm(size, config.rms_norm_eps, init, offset=offset, split=split)


def _times(x: jax.Array, factor: float) -> jax.Array:
    """Multiplies in float32 and rounds to the dtype of x, as PyTorch does with a Python number."""
    return x if factor == 1 else (x.astype(jnp.float32) * factor).astype(x.dtype)
