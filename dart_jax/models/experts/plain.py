"""The experts' sums in plain JAX, in two ways.

`loop_over_experts` reads only the weights of experts that some row is routed to, and is fastest on
CPU for every number of rows. `grouped` sorts the rows by expert and calls `jax.lax.ragged_dot`; on
GPUs XLA multiplies every row with the weights of all experts for that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dart_jax.models.platform.int8 import Int8, Kernel, times


def loop_over_experts(
    rows: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    gate: Kernel,
    up: Kernel,
    down: Kernel,
) -> jax.Array:
    """Runs all rows through each expert in turn; skips experts that no row chose.

    Args:
      rows: [T, D].
      weights: [T, k].
      experts: int32 [T, k], each row's experts, all distinct; E for those of other devices, which
        are left out.
      gate: kernels [E, D, F].
      up: kernels [E, D, F].
      down: kernels [E, F, D].
    """

    def add(expert: jax.Array, total: jax.Array) -> jax.Array:
        share = jnp.sum(jnp.where(experts == expert, weights, 0), axis=1, keepdims=True)

        def run(total: jax.Array) -> jax.Array:
            own = lambda kernels: jax.tree.map(lambda x: x[expert], kernels)  # noqa: E731
            hidden = jax.nn.silu(times(rows, own(gate))) * times(rows, own(up))
            return total + times(hidden, own(down)) * share

        return jax.lax.cond(jnp.any(experts == expert), run, lambda total: total, total)

    return jax.lax.fori_loop(0, gate.shape[0], add, jnp.zeros_like(rows))


def _exact_as_is(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Does not ask for exact products of bfloat16 numbers (see `decoding.step.exact_products`),
    which are exact anyway: the TPU's kernel for `ragged_dot` does not compile if asked."""

    @functools.wraps(function)
    def wrapped(rows: jax.Array, *args: jax.Array) -> jax.Array:
        if rows.dtype != jnp.bfloat16:
            return function(rows, *args)
        with jax.default_matmul_precision("default"):
            return function(rows, *args)

    return wrapped


@_exact_as_is
def grouped(
    rows: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    gate: Kernel,
    up: Kernel,
    down: Kernel,
    *,
    converted: bool = True,
) -> jax.Array:
    """Same as `loop_over_experts`, with one copy of every row per expert, sorted by expert.

    Args:
      converted: whether weights in 8 bits are converted before the product, which is best on GPUs;
        on TPUs XLA would then write those of all experts to memory.
    """
    k = experts.shape[1]
    chosen = experts.reshape(-1)
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=gate.shape[0]).astype(jnp.int32)
    copies = jnp.take(rows, order // k, axis=0)
    of_copy = jnp.minimum(jnp.take(chosen, order), gate.shape[0] - 1)

    def product(x: jax.Array, kernels: Kernel) -> jax.Array:
        if not isinstance(kernels, Int8):
            return jax.lax.ragged_dot(x, kernels, sizes)
        values = kernels.values.astype(x.dtype) if converted else kernels.values
        y = jax.lax.ragged_dot(x, values, sizes, preferred_element_type=jnp.float32)
        return (y * jnp.take(kernels.scale, of_copy, axis=0)).astype(x.dtype)

    hidden = jax.nn.silu(product(copies, gate)) * product(copies, up)
    out = product(hidden, down)
    back = jnp.take(out, jnp.argsort(order), axis=0).reshape(*experts.shape, -1)
    # What the products give for rows beyond all groups is undefined.
    back = jnp.where((experts < gate.shape[0])[:, :, None], back * weights[:, :, None], 0)
    return jnp.sum(back, axis=1)
