"""Reads one safetensors file, one tensor at a time."""

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

_DTYPES = {
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


class Tensor(NamedTuple):
    """A tensor that is not loaded yet.

    Attributes:
      shape: its shape.
      dtype: its dtype, NumPy's or from `ml_dtypes`.
      read: loads a copy of it into memory; raises UserError if the file is damaged.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


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
        if dtype not in _DTYPES:
            raise UserError(
                f"cannot read {path}: {name} has dtype {dtype}, not one of {', '.join(_DTYPES)}"
            )

        shape = tuple(header.get_shape())

        def read() -> np.ndarray:
            try:
                if dtype in _UNKNOWN_TO_NUMPY:
                    return _read(path, starts()[name], _DTYPES[dtype], shape)
                return file.get_tensor(name)
            except (OSError, ValueError, SafetensorError) as error:
                raise damaged(path, error) from None

        return Tensor(shape, _DTYPES[dtype], read)

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


def damaged(path: Path, why: object) -> UserError:
    """Returns the error to raise for a file that cannot be read."""
    reason = " ".join(str(why).split())
    return UserError(f"cannot read {path}: {reason}; the file is damaged or incomplete")
