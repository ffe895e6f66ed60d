"""Reads one safetensors file, one tensor at a time."""

from __future__ import annotations

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
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


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

    def tensor(name: str) -> Tensor:
        header = file.get_slice(name)
        dtype = header.get_dtype()
        if dtype not in _DTYPES:
            raise UserError(
                f"cannot read {path}: {name} has dtype {dtype}, not one of {', '.join(_DTYPES)}"
            )

        def read() -> np.ndarray:
            try:
                return file.get_tensor(name)
            except (OSError, SafetensorError) as error:
                raise damaged(path, error) from None

        return Tensor(tuple(header.get_shape()), _DTYPES[dtype], read)

    return {name: tensor(name) for name in file.offset_keys()}


def damaged(path: Path, why: object) -> UserError:
    """Returns the error to raise for a file that cannot be read."""
    reason = " ".join(str(why).split())
    return UserError(f"cannot read {path}: {reason}; the file is damaged or incomplete")
