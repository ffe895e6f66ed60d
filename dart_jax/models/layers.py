"""Layers shared by the target and the drafters: linear, RMS norm, gated MLP.

Norms are computed in float32 for every dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.cpu.products import is_packed, product

# A nested dict of arrays, one per `nnx.Param` of a module.
Params = dict[str, Any]

INIT = nnx.initializers.normal(0.02)


# The activations of gated MLPs, by their names in config.json.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}


class Linear(nnx.Module):
    """`x @ kernel + bias`, kernel [in, out]; most layers have no bias.

    On a CPU a loaded model's kernel may be packed (see `cpu.products`).
    """

    def __init__(
        self, d_in: int, d_out: int, *, dtype: DTypeLike, rngs: nnx.Rngs, bias: bool = False
    ):
        self.kernel = nnx.Param(INIT(rngs.params(), (d_in, d_out), dtype))
        if bias:
            self.bias = nnx.Param(jnp.zeros((d_out,), dtype))
        self.has_bias = bias
        self.d_out = d_out

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        y = product(x, kernel, self.d_out) if is_packed(kernel) else x @ kernel
        return y + _row(self.bias[...], y) if self.has_bias else y

    def logits(self, x: jax.Array) -> jax.Array:
        """[..., in] -> float32 [..., out], without the bias: rounding logits to bfloat16 would make
        ties common."""
        kernel = self.kernel[...]
        if is_packed(kernel):
            return product(x.astype(jnp.float32), kernel, self.d_out)
        return jnp.einsum("...d,dv->...v", x, kernel, preferred_element_type=jnp.float32)


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis.

    With an `offset` (0 or 1) the product with the scale, which is then `offset + scale`, is also
    computed in float32; without, the normalised values are rounded to their dtype first. In float32
    this only matters for the offset.
    """

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike, offset: float | None = None):
        self.scale = nnx.Param(jnp.full((size,), 1 - (offset or 0), dtype))
        self.eps = eps
        self.offset = offset

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...]
        if self.offset is None:
            return y.astype(x.dtype) * _row(scale, x)
        return (y * _row(self.offset + scale.astype(jnp.float32), x)).astype(x.dtype)


class GatedMLP(nnx.Module):
    """The gated MLP: `down(activation(gate(x)) * up(x))`; fused, gate and up are one product."""

    def __init__(
        self,
        d: int,
        hidden: int,
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
        bias: bool = False,
        activation: str = "silu",
        fused: bool = False,
    ):
        self.fused = fused
        if fused:
            self.gate_up_proj = Linear(d, 2 * hidden, dtype=dtype, rngs=rngs, bias=bias)
        else:
            self.gate_proj = Linear(d, hidden, dtype=dtype, rngs=rngs, bias=bias)
            self.up_proj = Linear(d, hidden, dtype=dtype, rngs=rngs, bias=bias)
        self.down_proj = Linear(hidden, d, dtype=dtype, rngs=rngs, bias=bias)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.fused:
            gate, up = jnp.split(self.gate_up_proj(x), 2, axis=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(ACTIVATIONS[self.activation](gate) * up)


def _row(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Shapes a vector [D] so that it broadcasts against x [..., D]."""
    return vector.reshape((1,) * (x.ndim - 1) + vector.shape)
