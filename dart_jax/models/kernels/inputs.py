"""Inputs of a linear layer: rows, or rows that it normalises or gates as it reads them.

With plain JAX the two are computed first; the C++ core computes them with the product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.models.sharding.mesh import MODEL

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}


class Normed(NamedTuple):
    """Rows divided by their root mean square, and multiplied by a scale.

    With an `offset` (0 or 1) the product with the scale, which is then `offset + scale`, is also
    computed in float32; without, the normalised values are rounded to their dtype first. In float32
    this only matters for the offset.

    Attributes:
      x: [..., D].
      scale: [D].
      eps: added to the mean square.
      offset: 0 or 1, or None for none.
      split: whether other devices have more of the rows' columns.
    """

    x: jax.Array
    scale: jax.Array
    eps: float
    offset: float | None
    split: bool = False

    def computed(self) -> jax.Array:
        """[..., D], of x's dtype."""
        y = self.x.astype(jnp.float32)
        square = jnp.mean(y * y, axis=-1, keepdims=True)
        square = jax.lax.pmean(square, MODEL) if self.split else square
        y = y * jax.lax.rsqrt(square + self.eps)
        if self.offset is None:
            return y.astype(self.x.dtype) * as_row(self.scale, y)
        scale = as_row(self.offset + self.scale.astype(jnp.float32), y)
        return (y * scale).astype(self.x.dtype)


class Gated(NamedTuple):
    """`activation(gate) * up`.

    Attributes:
      x: [..., 2 D]: gate, then up.
      activation: a key of `ACTIVATIONS`.
    """

    x: jax.Array
    activation: str

    def computed(self) -> jax.Array:
        """[..., D], of x's dtype."""
        gate, up = jnp.split(self.x, 2, axis=-1)
        return ACTIVATIONS[self.activation](gate) * up


Inputs = jax.Array | Normed | Gated


def computed(inputs: Inputs) -> jax.Array:
    """Returns the rows that a linear layer multiplies."""
    return inputs.computed() if isinstance(inputs, Normed | Gated) else inputs


def source(inputs: Inputs) -> jax.Array:
    """Returns the array that a linear layer reads: the rows, or what it normalises or gates."""
    return inputs.x if isinstance(inputs, Normed | Gated) else inputs


def add(y: jax.Array, bias: jax.Array | None, residual: jax.Array | None) -> jax.Array:
    """Adds what a linear layer adds to its product: y [..., D] + bias [D] + residual [..., D]."""
    y = y if bias is None else y + as_row(bias, y)
    return y if residual is None else residual + y


def as_row(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Shapes a vector [D] so that it broadcasts against x [..., D]."""
    return vector.reshape((1,) * (x.ndim - 1) + vector.shape)
