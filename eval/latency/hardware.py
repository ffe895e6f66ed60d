"""What the device can do, measured: bytes a second of a copy, operations a second of a product."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_LARGEST = {"cpu": 2**28}  # bytes that are copied; must not fit into caches
_COPIED = 2**30  # elsewhere
_IN_A_ROW = 4
_RUNS = 5
_SIZES = (512, 1024, 2048, 4096, 8192)
_ENOUGH = 0.05  # seconds; a product that takes so long is large enough


class Hardware(NamedTuple):
    """The device's limits.

    Attributes:
      bandwidth: bytes a second, read and written, of a large copy: the fastest of some, as the
        device may be shared.
      rate: operations a second of a large square product, two a multiplication and addition.
      dtype: of that product.
      copied: bytes of the array that was copied.
      size: of the fastest product's matrices.
      memory: bytes that arrays may take, in all.
    """

    bandwidth: float
    rate: float
    dtype: str
    copied: int
    size: int
    memory: int


def measure(dtype: Any, *, copied: int | None = None) -> Hardware:
    """Measures the first device.

    Args:
      dtype: of the product.
      copied: bytes to copy; None for as many as no cache holds.
    """
    memory = device_memory()
    copied = copied or min(_LARGEST.get(jax.default_backend(), _COPIED), memory // 16)
    product, size = _rate(dtype)
    return Hardware(_bandwidth(copied), product, jnp.dtype(dtype).name, copied, size, memory)


def device_memory() -> int:
    """Bytes that arrays may take on the first device; on CPU what the machine has left."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _bandwidth(copied: int) -> float:
    """Of a copy from one array into another, and within one: the faster."""
    source, other = (jnp.full((copied // 4,), value, jnp.float32) for value in (0, 1))

    # Written over what is there: the pages of new memory would have to be made first. Unused, the
    # array written over must be kept among the arguments, or it is not written over.
    @partial(jax.jit, donate_argnames=("over",), keep_unused=True)
    def copy(source: jax.Array, over: jax.Array) -> jax.Array:
        del over
        return source + 1

    @partial(jax.jit, donate_argnames=("source",))
    def within(source: jax.Array) -> jax.Array:
        return source + 1

    def copies() -> jax.Array:
        nonlocal source, other
        for _ in range(_IN_A_ROW):
            source, other = copy(source, other), source
        return source

    def changes() -> jax.Array:
        nonlocal source
        for _ in range(_IN_A_ROW):
            source = within(source)
        return source

    seconds = min(_fastest(work, _RUNS) for work in (copies, changes))
    return 2 * 4 * (copied // 4) * _IN_A_ROW / seconds


def _rate(dtype: Any) -> tuple[float, int]:
    """The fastest product's operations a second, and its size."""
    best = (0.0, 0)
    for size in _SIZES:
        matrix = jnp.ones((size, size), dtype)
        # Exact float32, as in the decode step.
        product = jax.jit(lambda x, y: jnp.matmul(x, y, precision="highest"))
        seconds = _fastest(lambda m=matrix, p=product: [p(m, m) for _ in range(_IN_A_ROW)], _RUNS)
        best = max(best, (_IN_A_ROW * 2 * size**3 / seconds, size))
        if seconds > _ENOUGH * _IN_A_ROW:
            break
    return best


def _fastest(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of some runs; a first one is not measured."""
    jax.block_until_ready(work())
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work())
        seconds.append(time.perf_counter() - began)
    return min(seconds)
