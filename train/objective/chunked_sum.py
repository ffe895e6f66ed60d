"""Sums over chunks whose gradients neither store nor recompute intermediate values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp


def chunked_sum(
    term: Callable[[Any, jax.Array], jax.Array],
    chunks: int,
    inputs: Any,
    differentiated: Collection[str],
) -> jax.Array:
    """Returns the sum over i = 0 .. chunks - 1 of `term(inputs, i)`, float32 of any shape.

    Under differentiation, which needs scalar terms, each term's gradient is computed together with
    the term and accumulated: only one chunk's intermediate values are held at a time, and nothing
    is recomputed, as `jax.checkpoint` would do.

    Args:
      term: traceable; must not close over anything that is differentiated.
      chunks: number of chunks; static.
      inputs: a named tuple of trees of arrays.
      differentiated: the fields that receive gradients, of floating-point arrays.
    """
    args = {name: getattr(inputs, name) for name in differentiated}
    fixed = inputs._replace(**dict.fromkeys(differentiated))

    def rejoined(args: dict[str, Any], fixed: Any, i: jax.Array) -> jax.Array:
        return term(fixed._replace(**args), i)

    return _sum(rejoined, chunks, args, fixed)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum(term: Callable[[Any, Any, jax.Array], jax.Array], chunks: int, args: Any, fixed: Any):
    def add(total: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        return total + term(args, fixed, i), None

    shape = jax.eval_shape(term, args, fixed, jnp.int32(0)).shape
    return jax.lax.scan(add, jnp.zeros(shape, jnp.float32), jnp.arange(chunks, dtype=jnp.int32))[0]


def _forward(term, chunks, args, fixed):
    def add(carry, i):
        value, gradient = jax.value_and_grad(term)(args, fixed, i)
        return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), carry, (value, gradient)), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), args)
    start = (jnp.zeros((), jnp.float32), zeros)
    (total, gradient), _ = jax.lax.scan(add, start, jnp.arange(chunks, dtype=jnp.int32))
    gradient = jax.tree.map(lambda g, x: g.astype(x.dtype), gradient, args)
    return total, gradient


def _backward(term, chunks, gradient, cotangent):
    return jax.tree.map(lambda g: g * cotangent.astype(g.dtype), gradient), None


_sum.defvjp(_forward, _backward)
