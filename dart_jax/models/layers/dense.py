"""Layers shared by the target and the drafters: linear, RMS norm, gated MLP.

Norms are computed in float32 for every dtype of the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.kernels.inputs import ACTIVATIONS, Gated, Inputs, Normed, add, computed, source
from dart_jax.models.kernels.int8 import sums, times
from dart_jax.models.kernels.matmul import activations, narrowed
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import Tiles, product
from dart_jax.models.sharding.collectives import total

# A nested dict of arrays, one per `nnx.Param` of a module.
Params = dict[str, Any]

_INIT = nnx.initializers.normal(0.02)


class Init(NamedTuple):
    """How parameters are made.

    Attributes:
      dtype: of all; with matrices in float16, vectors are float32 (see `kernels.matmul`).
      rngs: for random values. None where only shapes matter, then they are 0.
    """

    dtype: DTypeLike = jnp.float32
    rngs: nnx.Rngs | None = None

    def random(self, *shape: int) -> nnx.Param:
        """Returns a parameter with random values."""
        if self.rngs is None:
            return self.full(0, *shape)
        return nnx.Param(_INIT(self.rngs.params(), shape, self._dtype(shape)))

    def full(self, value: float, *shape: int) -> nnx.Param:
        """Returns a parameter with one value."""
        return nnx.Param(jnp.full(shape, value, self._dtype(shape)))

    def _dtype(self, shape: tuple[int, ...]) -> DTypeLike:
        return activations(self.dtype) if len(shape) == 1 else self.dtype


class Linear(nnx.Module):
    """`x @ kernel + bias`, kernel [in, out]; most layers have no bias.

    A loaded model's kernel may be in 8 bits (`kernels.int8`) or, on a CPU, in tiles
    (`kernels.tiles`).
    A layer that is split by its inputs adds up the products of all devices.
    """

    def __init__(
        self, d_in: int, d_out: int, init: Init, *, bias: bool = False, split: bool = False
    ):
        self.kernel = init.random(d_in, d_out)
        if bias:
            self.bias = init.full(0, d_out)
        self.has_bias = bias
        self.split = split

    def __call__(self, inputs: Inputs, residual: jax.Array | None = None) -> jax.Array:
        """[..., in] -> [..., out]; added to the residual stream, if it is given."""
        kernel = self.kernel.get_value()
        bias = self.bias[...] if self.has_bias else None
        if isinstance(kernel, Tiles):
            return product(inputs, kernel, bias, residual)
        x = computed(inputs)
        y = times(narrowed(x, kernel.dtype) if isinstance(inputs, Normed) else x, kernel)
        return add(total(y) if self.split else y, bias, residual)

    def logits(self, inputs: Inputs) -> jax.Array:
        """[..., in] -> float32 [..., out], without the bias: rounding logits would make ties
        common."""
        kernel = self.kernel.get_value()
        if isinstance(kernel, Tiles):
            if source(inputs).dtype != jnp.float32:
                inputs = computed(inputs).astype(jnp.float32)
            return product(inputs, kernel)
        return sums(narrowed(computed(inputs), kernel.dtype), kernel)


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis; see `Normed`. It may be split: then the mean is
    over all devices."""

    def __init__(
        self, size: int, eps: float, init: Init, *, offset: float | None = None, split: bool = False
    ):
        self.scale = init.full(1 - (offset or 0), size)
        self.eps = eps
        self.offset = offset
        self.split = split

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.normed(x).computed()

    def normed(self, x: jax.Array) -> Normed:
        """As `__call__`, but left to the linear layer that reads it."""
        return Normed(x, self.scale[...], self.eps, self.offset, self.split)


class GatedMLP(nnx.Module):
    """The gated MLP: `down(activation(gate(x)) * up(x))`; fused, gate and up are one product."""

    def __init__(
        self,
        d: int,
        hidden: int,
        options: LayerOptions,
        init: Init,
        *,
        bias: bool = False,
        activation: str = "silu",
    ):
        self.fused = options.fused
        if options.fused:
            self.gate_up_proj = Linear(d, 2 * hidden, init, bias=bias)
        else:
            self.gate_proj = Linear(d, hidden, init, bias=bias)
            self.up_proj = Linear(d, hidden, init, bias=bias)
        self.down_proj = Linear(hidden, d, init, bias=bias, split=options.split)
        self.activation = activation

    def __call__(self, inputs: Inputs, residual: jax.Array | None = None) -> jax.Array:
        """[..., D] -> [..., D]; added to the residual stream, if it is given."""
        if self.fused:
            hidden = Gated(self.gate_up_proj(inputs), self.activation)
        else:
            x = computed(inputs)
            hidden = ACTIVATIONS[self.activation](self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(hidden, residual)
