"""Reads weights from the zip files of `torch.save`, without PyTorch and without running code.

Such a file contains a pickle, which could call any function, and the raw bytes of the tensors. This
reader allows it to build only tensors and dictionaries and rejects everything else.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.formats.safetensors_file import DTYPES, Tensor, damaged

# Its names of storages, in the order of `DTYPES`.
_NAMES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_DTYPES = {f"{name}Storage": dtype for name, dtype in zip(_NAMES, DTYPES.values(), strict=True)}


def open_torch(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a state dictionary by name.

    Raises:
      UserError: the file is damaged, not a zip file, or not a dictionary of tensors.
    """
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"cannot read {path}: it is not a zip file as PyTorch 1.6 and later write; the file is "
            "damaged, or must be saved again as model.safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            (pickled,) = (name for name in entries if name.endswith("/data.pkl"))
            folder = pickled.removesuffix("data.pkl")
            if f"{folder}byteorder" in entries and archive.read(f"{folder}byteorder") != b"little":
                raise ValueError("its numbers are big-endian")
            content = _Unpickler(archive.read(pickled), path, folder, entries).load()
        if not isinstance(content, dict):
            raise ValueError("it holds no dictionary of tensors")
        for name, tensor in content.items():
            if not isinstance(tensor, Tensor):
                raise ValueError(f"{name!r} is not a tensor")
        return {str(name): tensor for name, tensor in content.items()}
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise damaged(path, error) from None


class _Storage(NamedTuple):
    """Raw data: an entry of the archive, and its number of elements."""

    dtype: np.dtype
    entry: zipfile.ZipInfo
    size: int


class _Unpickler(pickle.Unpickler):
    """Resolves only the few names that weights need, and checks that tensors lie within their
    storages and these in the archive."""

    def __init__(
        self, data: bytes, path: Path, folder: str, entries: Mapping[str, zipfile.ZipInfo]
    ):
        super().__init__(io.BytesIO(data))
        self._path, self._folder, self._entries = path, folder, entries

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return name  # a string: a pickle can neither call nor change it
        allowed: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            # Bound methods, because a pickle could set attributes of functions.
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): self._parameter,
        }
        if (module, name) not in allowed:
            raise UserError(
                f"{self._path}: it refers to {module}.{name}, which weights do not need; "
                "use model.safetensors, or a file that you trust"
            )
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key, _, size = pid
        dtype, entry = _DTYPES[storage], self._entries[f"{self._folder}data/{key}"]
        if kind != "storage" or entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{entry.filename} is a compressed {kind!r}")
        if entry.file_size != size * dtype.itemsize:
            raise ValueError(f"{entry.filename} has {entry.file_size} bytes")
        return _Storage(dtype, entry, size)

    def _parameter(self, data: Any, *_: Any) -> Any:
        return data

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
        """Returns a view of a storage; offset and strides are in elements, not bytes."""
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"a tensor has shape {shape!r} and strides {strides!r}")
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if not isinstance(storage, _Storage) or (math.prod(shape) and last >= storage.size):
            raise ValueError("a tensor reaches beyond its storage")
        path = self._path

        def read() -> np.ndarray:
            try:
                with zipfile.ZipFile(path) as archive:
                    numbers = np.frombuffer(archive.read(storage.entry.filename), storage.dtype)
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                raise damaged(path, error) from None
            steps = tuple(stride * storage.dtype.itemsize for stride in strides)
            return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)

        return Tensor(tuple(shape), storage.dtype, read)
