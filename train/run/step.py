"""One step: its batch on the devices, and the update by the gradient summed over microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from dart_jax.models.kernels.matmul import cast
from train.run.mesh import fsdp_shardings, replicated

# (params, frozen, batch, key) -> the sum of the losses and their count, float32 scalars.
Loss = Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, jax.Array]]


class TrainState(NamedTuple):
    """The state that an update changes: the float32 parameters and the optimiser's state."""

    params: Any
    opt_state: Any


Figures = dict[str, jax.Array]
Update = Callable[[TrainState, Any, Any, Any, Any], tuple[TrainState, Figures]]


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
    rate) -> state and figures, float32 scalars: `loss`, the mean of the batch's losses, 0 without
    any, and `grad_norm`, of the gradient before clipping.

    The gradient of the *sum* of losses is accumulated in float32 over microbatches and divided
    once, so that the number of microbatches does not change the result. The loss of a microbatch is
    computed in `dtype`; but for float32, its own gradient is first rounded to that. Microbatch i of
    step n gets the key fold_in(fold_in(key(seed), n), i). The state is donated.
    """

    def total(params: Any, frozen: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = cast(params, dtype)
        # Gather the sharded parameters once, in the smaller dtype.
        params = jax.lax.with_sharding_constraint(params, replicated(mesh))
        return loss(params, frozen, batch, key)

    def update(
        state: TrainState, frozen: Any, batches: Any, step: jax.Array, rate: jax.Array
    ) -> tuple[TrainState, Figures]:
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
        figures = {"loss": losses / number, "grad_norm": optax.tree.norm(grads)}
        return TrainState(params, opt_state), figures

    return jax.jit(update, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))


class BatchSource(Protocol):
    """Training data as a pure function of the step, so that resuming needs only the step number:
    `batch` rows per step, over all processes; the fingerprint identifies data and order."""

    @property
    def batch(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, step: int, rows: slice) -> Any:
        """Returns a tree of numpy arrays with these rows of the step's batch along the first
        axis. Runs in a separate thread."""


def load(batches: BatchSource, step: int, sharding: NamedSharding, accumulate: int) -> Any:
    """Returns one step's batch as global arrays [accumulate, batch / accumulate, ...], in the order
    of its rows whatever the mesh. A process reads only those that its own devices need, once."""
    size = batches.batch // accumulate
    needed = sharding.addressable_devices_indices_map((accumulate, size)).values()
    spans = [rows.indices(size) for _, rows in filter(None, needed)]
    low, high = min(start for start, _, _ in spans), max(stop for _, stop, _ in spans)
    parts = [batches(step, slice(i * size + low, i * size + high)) for i in range(accumulate)]

    def assemble(*leaves: np.ndarray) -> jax.Array:
        shape = (accumulate, size, *leaves[0].shape[1:])
        own = leaves[0][None] if accumulate == 1 else np.stack(leaves)
        return jax.make_array_from_process_local_data(sharding, own, shape)

    return jax.tree.map(assemble, *parts)


@contextmanager
def loading(
    batches: BatchSource, steps: range, sharding: NamedSharding, accumulate: int
) -> Iterator[Iterator[Any]]:
    """Yields every step's batch; a thread loads the next one meanwhile."""
    with ThreadPoolExecutor(1, "loader") as thread:

        def ahead() -> Iterator[Any]:
            loads = (thread.submit(load, batches, step, sharding, accumulate) for step in steps)
            following = next(loads, None)
            while following is not None:
                batch, following = following.result(), next(loads, None)
                yield batch

        yield ahead()
