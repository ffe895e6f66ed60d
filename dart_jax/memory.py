"""Memory: parses sizes, gets huge pages, and returns what was freed."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import re
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from dart_jax.errors import UserError

_LARGE = 1 << 20  # bytes
_HUGE_PAGE, _HUGE_AT_ONCE = 1 << 21, 1 << 26
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them


def parse_memory(text: str) -> int:
    """Parses a size such as 4GB, 1.5GiB or 800M into bytes; raises UserError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UserError(f"memory must be written like 4GB or 800MB, got {text!r}")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


def return_large() -> None:
    """Makes glibc return arrays of 1 MB and more to the system as soon as they are freed; it would
    learn from the first of up to 32 MB to keep such. Has no effect on other systems."""
    if mallopt := _glibc("mallopt"):
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, 4 * _LARGE)


def give_back() -> None:
    """Gives memory back to the system that was freed here, also in small pieces: glibc keeps that
    for itself, tens of MB after a program was compiled."""
    if trim := _glibc("malloc_trim"):
        trim(0)


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Returns an empty array aligned for XLA, so that on a CPU it is used without a copy."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


class HugePages:
    """Memory in pages of 2 MB, where the system has them (Linux); elsewhere in its own ones.

    What is read from beginning to end again and again, as weights are, is read faster from them: a
    processor looks up addresses, and foresees what comes next, page by page.
    """

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Copies an array to the place after the last one; it is aligned as by `aligned`."""
        size = -(-array.nbytes // 64) * 64
        if size > len(self._free):
            self._free = _huge(max(size, _HUGE_AT_ONCE))
        place, self._free = self._free[: array.nbytes], self._free[size:]
        copy = place.view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


def _huge(size: int) -> np.ndarray:
    """Memory that begins with a huge page, and takes some as it is written."""
    memory = mmap.mmap(-1, size + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # of other systems; of kernels without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % _HUGE_PAGE
    return array[start : start + size]


def _glibc(name: str) -> Callable[..., int] | None:
    """Returns a function of the C library, or None where that lacks it."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
