"""Reads one safetensors file, one tensor or one part of a tensor at a time."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from dart_jax.errors import UserError

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}

# The library writes them from NumPy arrays, and cannot read them into any.
_UNKNOWN_TO_NUMPY = ("F8_E4M3",)

# A part of an array: for each axis, from where to where; slices without steps.
Region = tuple[slice, ...]

# Bytes read at once where a part is not adjacent in the file.
_BLOCK = 1 << 23


class Tensor(NamedTuple):
    """A tensor that is not loaded yet.

    Attributes:
      shape: its shape.
      dtype: its dtype, NumPy's or from `ml_dtypes`.
      read: loads a copy of it into memory; raises UserError if the file is damaged.
      read_part: loads a region of it, and little more; raises as `read`. None where it takes all of
        the tensor to compute one.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    read_part: Callable[[Region], np.ndarray] | None = None

    def turned(self) -> Tensor:
        """The tensor with its last two axes swapped."""
        part = self.read_part

        def read_part(region: Region) -> np.ndarray:
            assert part is not None
            return part((*region[:-2], region[-1], region[-2])).swapaxes(-1, -2)

        shape = (*self.shape[:-2], self.shape[-1], *self.shape[-2:-1])
        read = lambda: self.read().swapaxes(-1, -2)  # noqa: E731
        return Tensor(shape, self.dtype, read, None if part is None else read_part)


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file by name, in file order.

    Raises:
      UserError: the file is damaged or incomplete, or contains an unsupported dtype.
    """
    try:
        # Plain reads: the pages of a mapped file would count as memory of this process, and reading
        # a mapped file that was truncated meanwhile would kill the process.
        file = safe_open(path, framework="numpy", backend="pread")
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None

    starts = functools.cache(lambda: _starts(path))

    def tensor(name: str) -> Tensor:
        header = file.get_slice(name)
        dtype = header.get_dtype()
        if dtype not in DTYPES:
            raise UserError(
                f"cannot read {path}: {name} has dtype {dtype}, not one of {', '.join(DTYPES)}"
            )

        shape = tuple(header.get_shape())

        def read() -> np.ndarray:
            try:
                if dtype in _UNKNOWN_TO_NUMPY:
                    return _read(path, starts()[name], DTYPES[dtype], shape)
                return file.get_tensor(name)
            except (OSError, ValueError, SafetensorError) as error:
                raise damaged(path, error) from None

        def read_part(region: Region) -> np.ndarray:
            try:
                return _read_part(path, starts()[name], DTYPES[dtype], shape, region)
            except (OSError, ValueError) as error:
                raise damaged(path, error) from None

        return Tensor(shape, DTYPES[dtype], read, read_part)

    return {name: tensor(name) for name in file.offset_keys()}


def _starts(path: Path) -> dict[str, int]:
    """Returns where the bytes of each tensor begin, in a file that the library has checked."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {
        name: 8 + size + entry["data_offsets"][0]
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _read(path: Path, start: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Reads a tensor of a dtype of one byte; raises ValueError if the file is too short."""
    return np.fromfile(path, np.uint8, math.prod(shape), offset=start).view(dtype).reshape(shape)


def _read_part(
    path: Path, start: int, dtype: np.dtype, shape: tuple[int, ...], region: Region
) -> np.ndarray:
    """Reads a region of a tensor that begins at `start`; raises ValueError if the file ends early.

    What is adjacent in the file is read at once. Short pieces of rows are taken from blocks of
    whole rows: the disk reads no less.
    """
    bounds = [part.indices(size)[:2] for part, size in zip(region, shape, strict=True)]
    part = np.empty([end - begin for begin, end in bounds], dtype)
    # The last axis that is not whole.
    cut = [pair != (0, size) for pair, size in zip(bounds, shape, strict=True)]
    axis = max((n for n, is_cut in enumerate(cut) if is_cut), default=0)
    rest = math.prod(shape[axis + 1 :])
    begin, end = bounds[axis] if shape else (0, 1)
    if not part.size:
        return part
    with path.open("rb", buffering=0) as file:

        def run(first: int, count: int) -> np.ndarray:
            """So many numbers from one on."""
            numbers = np.empty(count * dtype.itemsize, np.uint8)
            file.seek(start + first * dtype.itemsize)
            left = numbers.data
            while left:
                if not (read := file.readinto(left)):
                    raise ValueError("it is too short")
                left = left[read:]
            return numbers.view(dtype)

        if axis == 0:
            return run(begin * rest, (end - begin) * rest).reshape(part.shape)
        first, last = bounds[axis - 1]
        width = shape[axis] * rest
        at_once = max(1, _BLOCK // (width * dtype.itemsize))
        for outer in np.ndindex(*part.shape[: axis - 1]):
            row = 0
            for i, (from_, _), size in zip(outer, bounds, shape, strict=False):
                row = row * size + from_ + i
            row *= shape[axis - 1]
            for top in range(first, last, at_once):
                rows = min(at_once, last - top)
                to = part[outer][top - first : top - first + rows]
                if rows == 1:  # long ones
                    to[0] = run((row + top) * width + begin * rest, to.size).reshape(to.shape[1:])
                else:
                    block = run((row + top) * width, rows * width)
                    to[...] = block.reshape(rows, *shape[axis:])[:, begin:end]
    return part


def damaged(path: Path, why: object) -> UserError:
    """Returns the error to raise for a file that cannot be read."""
    reason = " ".join(str(why).split())
    return UserError(f"cannot read {path}: {reason}; the file is damaged or incomplete")
