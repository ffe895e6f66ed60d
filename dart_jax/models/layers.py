"""Layers shared by the target and the drafters: linear, RMS norm, gated MLP.

Norms are computed in float32 for every dtype of the weights.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

# A nested dict of arrays, one per `nnx.Param` of a module.
Params = dict[str, Any]

INIT = nnx.initializers.normal(0.02)


class Linear(nnx.Module):
    """`x @ kernel`, kernel [in, out], no bias."""

    def __init__(self, d_in: int, d_out: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.kernel = nnx.Param(INIT(rngs.params(), (d_in, d_out), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel[...]


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.scale = nnx.Param(jnp.ones((size,), dtype))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...]
        return y.astype(x.dtype) * scale.reshape((1,) * (x.ndim - 1) + scale.shape)


class SwiGLU(nnx.Module):
    """The gated MLP: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, d: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.gate_proj = Linear(d, hidden, dtype=dtype, rngs=rngs)
        self.up_proj = Linear(d, hidden, dtype=dtype, rngs=rngs)
        self.down_proj = Linear(hidden, d, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
