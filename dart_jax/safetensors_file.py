"""Reads and writes one safetensors file, a tensor at a time.

The file is the header's size (8 bytes, little endian), the header (JSON: dtype, shape and place of
every tensor), and the tensors behind one another. Plain reads instead of a mapping keep no page of
the file in this process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from dart_jax.errors import UserError

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000


class Tensor(NamedTuple):
    """A tensor that is not in memory.

    Attributes:
      shape: its axes.
      dtype: NumPy's, or that of `ml_dtypes`.
      read: brings a copy of it into memory; UserError if it lies in a damaged file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, in the order in which they lie there.

    Raises:
      UserError: the file is damaged or incomplete.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _LARGEST_HEADER:
                raise ValueError("its header is too large")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        return _parse(path, header, start=8 + size)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged(path, error) from None


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file that PyTorch programs read; `path` is not replaced atomically."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, dtype, _) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        place = {"shape": shape, "data_offsets": [end, end + size]}
        header[name] = {"dtype": _NAMES[dtype], **place}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data is aligned to the largest items
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.read()).reshape(-1).view(np.uint8).data)


def damaged(path: Path, why: object) -> UserError:
    """What is raised for a file that cannot be read."""
    told = " ".join(str(why).split())
    return UserError(f"cannot read {path}: {told}; the file is damaged or incomplete")


def _parse(path: Path, header: dict[str, Any], start: int) -> dict[str, Tensor]:
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = _DTYPES.get(entry["dtype"]), tuple(entry["shape"])
        if dtype is None:
            raise ValueError(f"{name} has an unknown dtype {entry['dtype']!r}")
        if not all(type(axis) is int and axis >= 0 for axis in shape):
            raise ValueError(f"{name} has shape {entry['shape']!r}")
        size = math.prod(shape) * dtype.itemsize
        # Without gaps: so each byte of the file belongs to exactly one tensor.
        if entry["data_offsets"] != [end, end + size]:
            raise ValueError(f"{name} of {size} bytes lies at {entry['data_offsets']!r}")
        tensors[name] = Tensor(shape, dtype, _reader(path, start + end, shape, dtype))
        end += size
    if path.stat().st_size != start + end:
        raise ValueError(f"it has {path.stat().st_size} bytes, its header asks for {start + end}")
    return tensors


def _reader(
    path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype
) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        data = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                done = 0
                while done < len(data):  # one read returns at most 2 GB
                    count = file.readinto(data[done:].data)
                    if not count:
                        raise ValueError("it ends too early")
                    done += count
        except (OSError, ValueError) as error:
            raise damaged(path, error) from None
        return data.view(dtype).reshape(shape)

    return read
