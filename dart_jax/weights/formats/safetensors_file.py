"""Reads one safetensors file, one tensor or one part of a tensor at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from dart_jax.errors import UserError

DTYPES = {
    **{"F64": np.dtype("f8"), "F32": np.dtype("f4"), "F16": np.dtype("f2")},
    **{"BF16": np.dtype(ml_dtypes.bfloat16), "I64": np.dtype("i8"), "I32": np.dtype("i4")},
    **{"I16": np.dtype("i2"), "I8": np.dtype("i1"), "U8": np.dtype("u1"), "BOOL": np.dtype("?")},
}

# A part of an array: for each axis, from where to where; slices without steps.
Region = tuple[slice, ...]


class Blocks(NamedTuple):
    """Blocks in which a GGUF file has a matrix.

    Attributes:
      type: GGUF's name of their type.
      read: loads the blocks of rows first..last: uint8 [rows, bytes]; raises as `Tensor.read`.
    """

    type: str
    read: Callable[[int, int], np.ndarray]


class Tensor(NamedTuple):
    """A tensor that is not loaded yet.

    Attributes:
      shape: its shape.
      dtype: its dtype, NumPy's or from `ml_dtypes`.
      read: loads a copy of it into memory; raises UserError if the file is damaged.
      read_part: loads a region of it, and little more; raises as `read`. None where it takes all of
        the tensor to compute one.
      blocks: of a matrix in a GGUF file, or None for other numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    read_part: Callable[[Region], np.ndarray] | None = None
    blocks: Blocks | None = None

    def transposed(self) -> Tensor:
        """Returns the tensor with its last two axes swapped."""

        def swapped(axes: tuple) -> tuple:
            return (*axes[:-2], axes[-1], *axes[-2:-1])

        shape, part = swapped(self.shape), self.read_part
        read_part = part and (lambda region: part(swapped(region)).swapaxes(-1, -2))
        return Tensor(shape, self.dtype, lambda: self.read().swapaxes(-1, -2), read_part)


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file by name, in file order.

    Raises:
      UserError: the file is damaged or incomplete, or contains an unsupported dtype.
    """
    try:
        safe_open(path, framework="numpy", backend="pread")  # which checks the header
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
    header.pop("__metadata__", None)

    def tensor(name: str, entry: dict[str, Any]) -> Tensor:
        if entry["dtype"] not in DTYPES:
            raise UserError(
                f"cannot read {path}: {name} has dtype {entry['dtype']}, not one of "
                f"{', '.join(DTYPES)}"
            )
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        start = 8 + size + entry["data_offsets"][0]

        def read() -> np.ndarray:
            try:  # a plain read: pages of a mapped file would count as memory of this process
                return np.fromfile(path, dtype, math.prod(shape), offset=start).reshape(shape)
            except (OSError, ValueError) as error:  # the file has become shorter
                raise damaged(path, error) from None

        def read_part(region: Region) -> np.ndarray:
            if 0 in shape:
                return np.empty(shape, dtype)[region]
            try:  # a mapping that lasts no longer
                return np.array(np.memmap(path, dtype, "r", start, shape)[region])
            except (OSError, ValueError) as error:
                raise damaged(path, error) from None

        return Tensor(shape, dtype, read, read_part)

    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    return {name: tensor(name, entry) for name, entry in entries}


def damaged(path: Path, why: object) -> UserError:
    """Returns the error to raise for a file that cannot be read."""
    reason = " ".join(str(why).split())
    return UserError(f"cannot read {path}: {reason}; the file is damaged or incomplete")
