"""Times the ways of searching inside a jitted loop, as decoding calls them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.search.choice import TreeSearch
from eval.latency.clock import Times


def measure_ways(
    searches: Mapping[str, TreeSearch],
    batches: np.ndarray,
    seconds: float,
    rounds: int,
    notify: Callable[[str], None] = lambda _: None,
) -> dict[str, Times]:
    """Times searches of the same batches, in turn, so that a busy machine slows all of them.

    Args:
      searches: by name.
      batches: int32 [m, B, width].
      seconds: about how long to measure each in a round.
      rounds: how often.
      notify: is told what is measured.

    Returns:
      Seconds that the search of one batch takes, one value per round.

    Raises:
      RuntimeError: two ways found other trees.
    """
    loops = {name: _loop(search) for name, search in searches.items()}
    packed = jnp.asarray(batches)
    sums, repeats, times = {}, {}, {name: [] for name in searches}
    for name, loop in loops.items():
        notify(f"{name}, batch {batches.shape[1]}: compile")
        sums[name] = int(loop(packed, 1))  # compiles
        began = time.perf_counter()
        loop(packed, 1).block_until_ready()
        repeats[name] = max(1, round(seconds / (time.perf_counter() - began)))
    if len(set(sums.values())) != 1:
        raise RuntimeError(f"ways of searching found different trees: {sums}")
    for turn in range(rounds):
        for name, loop in loops.items():
            notify(f"{name}, batch {batches.shape[1]}: round {turn + 1}")
            began = time.perf_counter()
            loop(packed, repeats[name]).block_until_ready()
            took = time.perf_counter() - began
            times[name].append(took / (repeats[name] * len(batches)))
    return {name: Times(found, [], repeats[name] * len(batches)) for name, found in times.items()}


def _loop(search: TreeSearch) -> Callable[[jax.Array, int], jax.Array]:
    """A program that searches all batches again and again and mixes up all trees' numbers: batches
    int32 [m, B, width], repeats -> int32."""

    @jax.jit
    def run(search: TreeSearch, batches: jax.Array, repeats: jax.Array) -> jax.Array:
        count = batches.shape[0]

        def one(i: jax.Array, total: jax.Array) -> jax.Array:
            trees = search.in_program(batches[i % count])
            weights = jnp.arange(trees.size, dtype=jnp.int32).reshape(trees.shape)
            return total * 31 + jnp.sum(trees * weights)

        return jax.lax.fori_loop(0, repeats * count, one, jnp.int32(0))

    return lambda batches, repeats: run(search, batches, jnp.int32(repeats))
