"""One parameter update: the gradient of a batch, summed over microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from train.run.mesh import fsdp_shardings, replicated

# (params, frozen, batch, key) -> the sum of the losses and their count, float32 scalars.
Loss = Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, jax.Array]]


class TrainState(NamedTuple):
    """The state that an update changes: the float32 parameters and the optimiser's state."""

    params: Any
    opt_state: Any


class Measured(NamedTuple):
    """Figures of a step, float32 scalars.

    Attributes:
      loss: mean of the batch's losses; 0 if it has none.
      grad_norm: global norm of the gradient before clipping.
    """

    loss: jax.Array
    grad_norm: jax.Array


Update = Callable[[TrainState, Any, Any, Any, Any], tuple[TrainState, Measured]]


def state_shardings(mesh: Mesh, optimizer: optax.GradientTransformation, params: Any) -> TrainState:
    """Returns the shardings of the parameters (arrays or shapes) and of the optimiser's state."""
    opt_state = jax.eval_shape(optimizer.init, params)
    return TrainState(fsdp_shardings(mesh, params), fsdp_shardings(mesh, opt_state))


def make_update(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    *,
    dtype: DTypeLike = jnp.float32,
    seed: int = 0,
) -> Update:
    """Returns the jitted step: (state, frozen, microbatches, int32 step number, float32 learning
    rate) -> state, measured.

    The gradient of the *sum* of losses is accumulated in float32 over microbatches and divided
    once, so that the number of microbatches does not change the result. With bfloat16, each
    microbatch's own gradient is first rounded to bfloat16.

    Args:
      loss: computes the loss of one microbatch; receives its parameters in `dtype`.
      optimizer: turns a gradient into an update, at a learning rate of 1.
      mesh: the devices.
      shardings: of the state, which is donated.
      dtype: in which the loss is computed.
      seed: microbatch i of step n gets the key fold_in(fold_in(key(seed), n), i).
    """

    def total(params: Any, frozen: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        cast = jax.tree.map(lambda p: p.astype(dtype), params)
        # Gather the sharded parameters once, in the smaller dtype.
        cast = jax.lax.with_sharding_constraint(cast, replicated(mesh))
        return loss(cast, frozen, batch, key)

    def update(
        state: TrainState, frozen: Any, batches: Any, step: jax.Array, rate: jax.Array
    ) -> tuple[TrainState, Measured]:
        key = jax.random.fold_in(jax.random.key(seed), step)

        def add(sums: Any, part: Any) -> tuple[Any, None]:
            index, batch = part
            one = jax.value_and_grad(total, has_aux=True)(
                state.params, frozen, batch, jax.random.fold_in(key, index)
            )
            sums = jax.tree.map(jnp.add, sums, one)
            grads = jax.lax.with_sharding_constraint(sums[1], shardings.params)
            return (sums[0], grads), None

        zero = jnp.zeros((), jnp.float32)
        sums = ((zero, zero), jax.tree.map(jnp.zeros_like, state.params))
        count = jax.tree.leaves(batches)[0].shape[0]
        indices = jnp.arange(count, dtype=jnp.int32)
        ((losses, number), grads), _ = jax.lax.scan(add, sums, (indices, batches))

        number = jnp.maximum(number, 1)
        grads = jax.tree.map(lambda g: g / number, grads)
        # optax raises a float to an integer power, which needs standard promotion.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        updates = jax.tree.map(lambda u: rate * u, updates)
        params = optax.apply_updates(state.params, updates)
        figures = Measured(losses / number, optax.tree.norm(grads))
        return TrainState(params, opt_state), figures

    return jax.jit(update, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))
