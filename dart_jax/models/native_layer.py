"""Decoder layers by one call of the C++ core, for CPUs.

Between the calls for products, heads and attention XLA would run small operations, each of which
costs a microsecond or more, and the core's threads read ahead from layer to layer. What is computed
is the same, but for the attention of rows without a prefix, which the core computes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dart_jax.models.attention.native import fits_native
from dart_jax.models.attention.segments import Prefix, Scoring
from dart_jax.models.cache import KVCache
from dart_jax.models.cpu import or_nothing, used_rows
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import CORE_ACTIVATIONS, Tiles, described
from dart_jax.models.layers import Linear


def one_call(options: LayerOptions, out: Linear, x: jax.Array, head_dim: int) -> bool:
    """Tells whether the C++ core computes a dense layer by one call.

    Args:
      options: of the layer.
      out: its output projection.
      x: the residual stream.
      head_dim: size of its heads.
    """
    native = options.attention == "native" and options.fused
    tiles = isinstance(out.kernel.get_value(), Tiles)
    return native and tiles and x.dtype == jnp.float32 and fits_native(head_dim)


class Projection(NamedTuple):
    """A linear layer.

    Attributes:
      kernel: [in, out].
      bias: [out]; None for none.
    """

    kernel: Tiles
    bias: jax.Array | None


class NativeLayer(NamedTuple):
    """A layer's weights and settings.

    Attributes:
      before_attention: scale of a norm, [D], like the other three; None where there is none.
      after_attention: of what attention adds to the residual stream.
      before_mlp: as `before_attention`.
      after_mlp: as `after_attention`.
      q_scale: of the queries' norm, [h], or [H h] to normalise all heads together; None for none.
      k_scale: of the keys' norm, likewise.
      qkv: queries, keys and values.
      out: output projection of attention.
      gate_up: of the MLP, like `down`.
      down: see above.
      activation: of the MLP.
      eps: of all norms.
      offset: of all norms, added to their scales.
      multiplier: of what attention and MLP add to the residual stream.
      scoring: of attention.
      kv_heads: K.
      kv_dtype: of keys and values, float32 or bfloat16.
    """

    before_attention: jax.Array | None
    after_attention: jax.Array | None
    before_mlp: jax.Array | None
    after_mlp: jax.Array | None
    q_scale: jax.Array | None
    k_scale: jax.Array | None
    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    activation: str
    eps: float
    offset: float
    multiplier: float
    scoring: Scoring
    kv_heads: int
    kv_dtype: DTypeLike

    @property
    def head_dim(self) -> int:
        """Size of a head, h."""
        return (self.qkv.kernel.shape[1] - self.out.kernel.d_in) // (2 * self.kv_heads)

    @property
    def matrices(self) -> tuple[Projection, ...]:
        """Its linear layers."""
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def settings(self) -> tuple[str, float, float, float, Scoring]:
        """What layers of one call must share."""
        return self.activation, self.eps, self.offset, self.multiplier, self.scoring


class LayerInputs(NamedTuple):
    """What a layer reads beside the residual stream.

    Attributes:
      cos: of the rotation of queries and keys, float32 [B, T, r / 2].
      sin: likewise.
      mask: bool, broadcastable to [B, T, T]; which new rows a row sees.
      prefix: cached rows, as many in all layers; None for none.
    """

    cos: jax.Array
    sin: jax.Array
    mask: jax.Array
    prefix: Prefix | None


def run_natively(
    layers: Sequence[tuple[NativeLayer, LayerInputs]], x: jax.Array
) -> tuple[jax.Array, KVCache]:
    """Runs layers that have the same `settings` one after another.

    Args:
      layers: with their inputs.
      x: the residual stream, float32 [B, T, D].

    Returns:
      The residual stream after them, and each one's keys and values of the new rows, [B, K, T, h].
      Rows that `cpu.only_rows` leaves out hold anything.
    """
    (b, t, _), (first, _) = x.shape, layers[0]
    assert all(layer.settings == first.settings for layer, _ in layers)
    arguments: list[jax.Array] = []
    rows: list[jax.ShapeDtypeStruct] = []
    for layer, inputs in layers:
        made = jax.ShapeDtypeStruct((b, layer.kv_heads, t, layer.head_dim), layer.kv_dtype)
        prefix = inputs.prefix or _no_prefix(made)
        norms = (layer.before_attention, layer.after_attention, layer.before_mlp, layer.after_mlp)
        arguments += [
            inputs.cos,
            inputs.sin,
            or_nothing(prefix.first, jnp.int32),
            jnp.broadcast_to(inputs.mask, (b, t, t)),
            *map(or_nothing, norms),
            or_nothing(layer.q_scale),
            or_nothing(layer.k_scale),
            *(or_nothing(matrix.bias) for matrix in layer.matrices),
            prefix.k,
            prefix.v,
            *(part for matrix in layer.matrices for part in matrix.kernel.parts),
        ]
        rows += [made, made]
    prefix = layers[0][1].prefix or _no_prefix(rows[0])
    y, *new = jax.ffi.ffi_call("dart_layers", (jax.ShapeDtypeStruct(x.shape, x.dtype), *rows))(
        x,
        prefix.length.astype(jnp.int32),
        or_nothing(prefix.pages, jnp.int32),
        used_rows(),
        *arguments,
        activation=CORE_ACTIVATIONS[first.activation],
        eps=np.float32(first.eps),
        offset=np.float32(first.offset),
        multiplier=np.float32(first.multiplier),
        scale=np.float32(first.scoring.factor(first.head_dim)),
        cap=np.float32(first.scoring.cap or 0),
        **described(*(matrix.kernel for layer, _ in layers for matrix in layer.matrices)),
    )
    return y, tuple(zip(new[::2], new[1::2], strict=True))


class NativeDraftLayer(NamedTuple):
    """The weights and settings of a DART drafter's first layer, which has no biases.

    Attributes:
      mask_row: what the layer reads in mask rows, [2 D].
      embeds_norm: scale of the norm of embeddings, [D], like the other two.
      residual_norm: of the residual stream, as the layer reads it.
      before_mlp: see above.
      q: queries, [2 D, H h].
      kv: keys and values, [2 D, 2 K h].
      out: output projection of attention.
      gate_up: of the MLP, like `down`.
      down: see above.
      eps: of all norms.
      scoring: of attention, without a cap.
      window: positions that a row sees, its own included; None for all.
      kv_heads: K.
      kv_dtype: of keys and values, float32 or bfloat16.
    """

    mask_row: jax.Array
    embeds_norm: jax.Array
    residual_norm: jax.Array
    before_mlp: jax.Array
    q: Tiles
    kv: Tiles
    out: Tiles
    gate_up: Tiles
    down: Tiles
    eps: float
    scoring: Scoring
    window: int | None
    kv_heads: int
    kv_dtype: DTypeLike

    def __call__(
        self,
        embeds: jax.Array,
        residual: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        last: jax.Array,
        prefix: Prefix | None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Runs the layer over T real rows and m mask rows of each sequence.

        Args:
          embeds: of the tokens after the real rows, float32 [B, T, D].
          residual: the residual stream of the real rows, float32 [B, T, D].
          cos: of the rotation of queries and keys, float32 [B, T + m, r / 2].
          sin: likewise.
          last: int32 [B], the anchors among the real rows.
          prefix: cached rows; None for none.

        Returns:
          The residual stream of the anchor and the mask rows after the layer, [B, 1 + m, D], which
          holds anything under `cpu.only_rows`; and keys and values of the real rows, [B, K, T, h].
        """
        (b, t, d), h = embeds.shape, self.kv.shape[1] // (2 * self.kv_heads)
        rows = jax.ShapeDtypeStruct((b, self.kv_heads, t, h), self.kv_dtype)
        prefix = prefix or _no_prefix(rows)
        kernels = self.q, self.kv, self.out, self.gate_up, self.down
        stream = jax.ShapeDtypeStruct((b, 1 + cos.shape[1] - t, d), embeds.dtype)
        y, k, v = jax.ffi.ffi_call("dart_draft_layer", (stream, rows, rows))(
            embeds,
            residual,
            *(x.astype(jnp.float32) for x in (self.mask_row, self.embeds_norm)),
            *(x.astype(jnp.float32) for x in (self.residual_norm, self.before_mlp)),
            cos,
            sin,
            last.astype(jnp.int32),
            prefix.k,
            prefix.v,
            prefix.length.astype(jnp.int32),
            or_nothing(prefix.pages, jnp.int32),
            used_rows(),
            *(part for kernel in kernels for part in kernel.parts),
            eps=np.float32(self.eps),
            scale=np.float32(self.scoring.factor(h)),
            window=np.int32(self.window or 0),
            **described(*kernels),
        )
        return y, (k, v)


def _no_prefix(rows: jax.ShapeDtypeStruct) -> Prefix:
    """A cache without rows, for new keys or values [B, K, T, h]."""
    b, kv_heads, _, h = rows.shape
    none = jnp.zeros((b, kv_heads, 0, h), rows.dtype)
    return Prefix(none, none, jnp.zeros(b, jnp.int32))
