"""Measures the device's limits: bytes per second of a copy, operations per second of a matmul."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_COPIED = {"cpu": 2**28}  # bytes to copy, by backend; must not fit into caches
_COPIED_DEFAULT = 2**30
_CALLS_PER_RUN = 4
_RUNS = 5
_SIZES = (512, 1024, 2048, 4096, 8192)
_ENOUGH = 0.05  # seconds; a matmul that takes longer is large enough


class Hardware(NamedTuple):
    """The device's limits.

    Attributes:
      bandwidth: bytes per second, read and written, of a large copy; the fastest of several, as
        the device may be shared.
      rate: operations per second of a large square matmul, two per multiply-add.
      dtype: dtype of that matmul.
      copied: bytes of the array that was copied.
      size: size of the matrices in the fastest matmul.
      memory: bytes available for arrays, in total.
      sharers: devices that share what was measured: virtual ones, of one CPU. The numbers are those
        of one of them.
    """

    bandwidth: float
    rate: float
    dtype: str
    copied: int
    size: int
    memory: int
    sharers: int = 1

    def shared_by(self, count: int) -> Hardware:
        """What each of so many virtual devices has of these, if all are busy."""
        return self._replace(
            bandwidth=self.bandwidth / count,
            rate=self.rate / count,
            memory=self.memory // count,
            sharers=count,
        )


def measure(dtype: Any, *, copied: int | None = None) -> Hardware:
    """Measures the first device.

    Args:
      dtype: dtype of the matmul.
      copied: bytes to copy; None for more than any cache holds.
    """
    memory = device_memory()
    copied = copied or min(_COPIED.get(jax.default_backend(), _COPIED_DEFAULT), memory // 16)
    rate, size = _rate(dtype)
    return Hardware(_bandwidth(copied), rate, jnp.dtype(dtype).name, copied, size, memory)


def device_memory() -> int:
    """Returns the bytes available for arrays on the first device; on CPU, the free memory."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _bandwidth(copied: int) -> float:
    """Returns the bandwidth of a copy into another array, or in place, whichever is faster."""
    source, other = (jnp.full((copied // 4,), value, jnp.float32) for value in (0, 1))

    # Overwrites `other`: the pages of new memory would have to be mapped first. `keep_unused`, or
    # the unused donated argument would be dropped and not overwritten.
    @partial(jax.jit, donate_argnames=("other",), keep_unused=True)
    def copy(source: jax.Array, other: jax.Array) -> jax.Array:
        del other
        return source + 1

    @partial(jax.jit, donate_argnames=("source",))
    def in_place(source: jax.Array) -> jax.Array:
        return source + 1

    def copy_run() -> jax.Array:
        nonlocal source, other
        for _ in range(_CALLS_PER_RUN):
            source, other = copy(source, other), source
        return source

    def in_place_run() -> jax.Array:
        nonlocal source
        for _ in range(_CALLS_PER_RUN):
            source = in_place(source)
        return source

    seconds = min(_fastest(work, _RUNS) for work in (copy_run, in_place_run))
    return 2 * 4 * (copied // 4) * _CALLS_PER_RUN / seconds


def _rate(dtype: Any) -> tuple[float, int]:
    """Returns the operations per second of the fastest matmul, and its size."""
    best = (0.0, 0)
    for size in _SIZES:
        matrix = jnp.ones((size, size), dtype)
        # Exact float32, as in the decode step.
        matmul = jax.jit(lambda x, y: jnp.matmul(x, y, precision="highest"))
        seconds = _fastest(
            lambda m=matrix, f=matmul: [f(m, m) for _ in range(_CALLS_PER_RUN)], _RUNS
        )
        best = max(best, (_CALLS_PER_RUN * 2 * size**3 / seconds, size))
        if seconds > _ENOUGH * _CALLS_PER_RUN:
            break
    return best


def _fastest(work: Callable[[], Any], repeats: int) -> float:
    """Returns the seconds of the fastest run; a first one, which compiles, is not measured."""
    jax.block_until_ready(work())
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work())
        seconds.append(time.perf_counter() - began)
    return min(seconds)
