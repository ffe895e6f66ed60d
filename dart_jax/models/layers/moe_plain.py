"""The experts' sums in plain JAX, in two ways.

`loop_over_experts` reads only the weights of experts that some row is routed to, and is fastest on
CPU for every number of rows. `grouped` sorts the rows by expert and calls `jax.lax.ragged_dot`; on
GPUs XLA multiplies every row with the weights of all experts for that.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from dart_jax.models.kernels.int8 import Int8, Kernel, times
from dart_jax.models.kernels.matmul import activations, factor, scaled


def loop_over_experts(
    rows: jax.Array, weights: jax.Array, experts: jax.Array, *kernels: Kernel
) -> jax.Array:
    """Runs all rows through each expert in turn; skips experts that no row chose.

    Args:
      rows: [T, D].
      weights: [T, k].
      experts: int32 [T, k], each row's experts, all distinct; E for other devices' experts, which
        are left out.
      *kernels: gate and up, [E, D, F], and down, [E, F, D].
    """
    gate, up, down = kernels

    def add(expert: jax.Array, total: jax.Array) -> jax.Array:
        share = jnp.sum(jnp.where(experts == expert, weights, 0), axis=1, keepdims=True)

        def run(total: jax.Array) -> jax.Array:
            of_expert = lambda kernels: jax.tree.map(lambda x: x[expert], kernels)  # noqa: E731
            hidden = jax.nn.silu(times(rows, of_expert(gate))) * times(rows, of_expert(up))
            return total + times(hidden, of_expert(down)) * share

        return jax.lax.cond(jnp.any(experts == expert), run, lambda total: total, total)

    return jax.lax.fori_loop(0, gate.shape[0], add, jnp.zeros_like(rows))


def grouped(
    rows: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    *kernels: Kernel,
    converted: bool = True,
) -> jax.Array:
    """Same as `loop_over_experts`, with one copy of every row per expert, sorted by expert.

    Args:
      converted: whether weights in 8 bits are converted before the product, which is best on GPUs;
        on TPUs XLA would then write all experts' weights to memory.
    """
    gate, up, down = kernels
    k = experts.shape[1]
    chosen = experts.reshape(-1)
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=gate.shape[0]).astype(jnp.int32)
    copies = jnp.take(rows, order // k, axis=0)
    of_copy = jnp.minimum(jnp.take(chosen, order), gate.shape[0] - 1)

    # Products of bfloat16 numbers are exact anyway (see `decoding.step.exact_products`), and the
    # TPU's kernel for them does not compile if that is asked for.
    precision = None if gate.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    multiply = functools.partial(jax.lax.ragged_dot, group_sizes=sizes, precision=precision)

    def product(x: jax.Array, kernels: Kernel) -> jax.Array:
        dtype = activations(x.dtype)
        x, by = factor(x, kernels.dtype)
        if not isinstance(kernels, Int8):
            return scaled(multiply(x, kernels, preferred_element_type=dtype), by)
        values = kernels.values.astype(x.dtype) if converted else kernels.values
        y = multiply(x, values, preferred_element_type=jnp.float32)
        return scaled(y * jnp.take(kernels.scale, of_copy, axis=0), by).astype(dtype)

    hidden = jax.nn.silu(product(copies, gate)) * product(copies, up)
    out = product(hidden, down)
    back = jnp.take(out, jnp.argsort(order), axis=0).reshape(*experts.shape, -1)
    # What the products give for rows beyond all groups is undefined.
    back = jnp.where((experts < gate.shape[0])[:, :, None], back * weights[:, :, None], 0)
    return jnp.sum(back, axis=1)
