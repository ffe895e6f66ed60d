"""Measures the device's limits: bytes per second of a copy, operations per second of a product."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.programs.spread import in_turn

_RUNS, _CALLS = 5, 4
_SIZES = (512, 1024, 2048, 4096, 8192)
_ENOUGH = 0.05  # seconds; a product that takes longer is large enough


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


def measure(dtype: Any) -> Hardware:
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
