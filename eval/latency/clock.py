"""Times compiled programs, and the device's limits."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_SECONDS, _MOST_CALLS = 0.1, 256  # of a measurement
# Of limits: repeats, calls of each, and sizes of products up to one that takes long enough.
_RUNS, _CALLS, _SIZES, _ENOUGH = 5, 4, (512, 1024, 2048, 4096, 8192), 0.05


def in_turn(works: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Times works in turn, so that a slow moment of the machine affects all of them.

    Args:
      works: by name; arrays that they return are waited for.
      repeats: rounds that count, after one that compiles.

    Returns:
      For each work the seconds of each round.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            jax.block_until_ready(work())
            if repeat:
                times[name].append(time.perf_counter() - start)
    return times


@dataclasses.dataclass
class Repeated:
    """A compiled program that is called again and again.

    Attributes:
      program: a function of `fixed` and `donated` that returns `donated` anew, and a result.
      fixed: its other arguments.
      donated: arrays such as caches, which are updated in place.
    """

    program: jax.stages.Compiled
    fixed: tuple[Any, ...]
    donated: Any = ()

    def __call__(self, calls: int) -> float:
        """Makes so many calls in a row; returns the seconds of one."""
        result, began = None, time.perf_counter()
        for _ in range(calls):
            self.donated, result = self.program(*self.fixed, self.donated)
        jax.block_until_ready(result)
        return (time.perf_counter() - began) / calls

    def calls(self) -> int:
        """Returns how many calls take about a tenth of a second; a first one warms up."""
        self(1)
        return min(max(round(_SECONDS / min(self(1), self(1))), 2), _MOST_CALLS)


def measure(program: Repeated, repeats: int) -> list[float]:
    """Times calls in a row, one by one dispatched, of which only the last is waited for; returns
    the seconds of a call, one value per repeat."""
    calls = program.calls()
    return [program(calls) for _ in range(repeats)]


class Hardware(NamedTuple):
    """The limits of a device.

    Attributes:
      bandwidth: bytes per second, read and written, of a large copy; the fastest of several, as
        the device may be shared.
      rate: operations per second of a large square matrix product, two per multiply-add.
      memory: bytes available for arrays; on a CPU, the free memory.
    """

    bandwidth: float
    rate: float
    memory: int


def limits(dtype: Any) -> Hardware:
    """Measures the first device, with products of this dtype."""
    stats = jax.local_devices()[0].memory_stats() or {}
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    memory = int(stats.get("bytes_limit", free))
    size = 2**28 if jax.default_backend() == "cpu" else 2**30  # more than any cache holds
    return Hardware(_bandwidth(min(size, memory // 16)), _rate(dtype), memory)


def _bandwidth(copied: int) -> float:
    """Returns the bytes per second of additions in place, which map no new pages of memory."""
    array = jnp.zeros((copied // 4,), jnp.float32)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def run() -> jax.Array:
        nonlocal array
        for _ in range(_CALLS):
            array = add(array)
        return array

    return 2 * array.nbytes * _CALLS / _fastest(run)


def _rate(dtype: Any) -> float:
    """Returns the operations per second of the fastest product, exact in float32 as in the decode
    step."""
    product = jax.jit(partial(jnp.matmul, precision="highest"))
    best = 0.0
    for size in _SIZES:
        x = jnp.ones((size, size), dtype)
        seconds = _fastest(lambda x=x: [product(x, x) for _ in range(_CALLS)]) / _CALLS
        best = max(best, 2 * size**3 / seconds)
        if seconds > _ENOUGH:
            break
    return best


def _fastest(run: Callable[[], Any]) -> float:
    """Returns the seconds of the fastest run; a first one, which compiles, is not measured."""
    return min(in_turn({"": run}, _RUNS)[""])
