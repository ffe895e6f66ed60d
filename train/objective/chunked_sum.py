"""Sums over chunks, differentiated without keeping or computing anything twice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def chunked_sum(term: Callable[[Any, Any, jax.Array], Any], chunks: int, args: Any, fixed: Any):
    """The sum over i = 0 .. chunks - 1 of `term(args, fixed, i)`, float32 of any one shape.

    Where a gradient is asked for, of scalars, each term's is computed together with the term and
    added up: only one chunk's intermediate values are ever held, and none is computed a second
    time, as `jax.checkpoint` would.

    Args:
      term: traceable; closes over nothing that is differentiated.
      chunks: static.
      args: a pytree of floating arrays, which gradients are taken for.
      fixed: any pytree of arrays; no gradient reaches it.
    """

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


def _backward(term, chunks, kept, cotangent):
    gradient = kept
    scaled = jax.tree.map(lambda g: g * cotangent.astype(g.dtype), gradient)
    return scaled, None


chunked_sum.defvjp(_forward, _backward)
