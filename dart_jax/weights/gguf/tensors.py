"""Tensors of a GGUF file, read and dequantised; and the index that says where they lie."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.formats.safetensors_file import DTYPES, Blocks, Region, Tensor, damaged
from dart_jax.weights.gguf.file import Stored

INDEX = "gguf.index.json"

# Types that need no package to read; safetensors have the same names for them.
_FLOATS = {name: DTYPES[name] for name in ("F32", "F16", "BF16")}


class Source(NamedTuple):
    """The origin of a tensor of the Hugging Face layout.

    Attributes:
      stored: as it lies in the file.
      shape: as the layout has it.
      heads: how many heads have their halves interleaved; 0 for none.
      offset: is subtracted.
    """

    stored: Stored
    shape: tuple[int, ...]
    heads: int = 0
    offset: float = 0.0


def gguf_files(directory: Path) -> list[Path]:
    """Returns the GGUF files that hold the weights of a target's directory; none if others do."""
    index = directory / INDEX
    return list(map(Path, json.loads(index.read_text())["files"])) if index.is_file() else []


def open_gguf(directory: Path) -> tuple[Path, dict[str, Tensor]]:
    """Opens the tensors of a directory that `target_directory` returned, by their names in the
    Hugging Face layout; returns the (first) GGUF file, too. Raises UserError if a file is no longer
    there."""
    paths = tuple(gguf_files(directory))
    for path in paths:
        if not path.is_file():
            raise UserError(f"no file {path}; it was there before, bring it back")
    tensors = {}
    for name, entry in json.loads((directory / INDEX).read_text())["tensors"].items():
        file, offset, kind, stored, shape, *rest = entry
        source = Source(Stored(file, offset, kind, tuple(stored)), tuple(shape), *rest)
        tensors[name] = open_source(paths, source)
    return paths[0], tensors


def open_source(paths: tuple[Path, ...], source: Source) -> Tensor:
    """Returns a tensor that is dequantised when it is read: to float32, or in its own dtype if it
    holds plain floats. Raises UserError if its type is not supported."""
    stored, path = source.stored, paths[source.stored.file]
    dequantize = _dequantizer(path, stored.kind)
    dtype = _FLOATS.get(stored.kind, np.dtype(np.float32))
    row = size_of(stored.kind, stored.shape[-1:])
    rows = math.prod(stored.shape[:-1])

    def read_bytes(first: int, last: int) -> np.ndarray:
        """Some rows of the tensor as it is stored."""
        count = (last - first) * row
        numbers = np.fromfile(path, np.uint8, count, offset=stored.offset + first * row)
        if numbers.size < count:
            raise damaged(path, "it is too short")
        return numbers.reshape(last - first, row)

    def read_rows(first: int, last: int) -> np.ndarray:
        """As `read_bytes`, but dequantised."""
        numbers = read_bytes(first, last)
        return numbers.view(dtype) if dequantize is None else dequantize(numbers)

    def in_order(tensor: np.ndarray) -> np.ndarray:
        """Rows in the order of the layout."""
        if not source.heads:
            return tensor
        # [heads, half, 2] -> [heads, 2, half]
        halves = tensor.reshape(source.heads, stored.shape[0] // source.heads // 2, 2, -1)
        return halves.swapaxes(1, 2).reshape(tensor.shape)

    def read_blocks(first: int, last: int) -> np.ndarray:
        if source.heads:
            return in_order(read_bytes(0, rows))[first:last]
        return read_bytes(first, last)

    def read() -> np.ndarray:
        tensor = in_order(read_rows(0, rows))
        if source.offset:
            tensor = tensor - np.asarray(source.offset, dtype)
        return np.ascontiguousarray(tensor.reshape(source.shape))

    def read_part(region: Region) -> np.ndarray:
        first, last, _ = region[0].indices(source.shape[0])
        inner = rows // source.shape[0]
        part = read_rows(first * inner, last * inner)
        return part.reshape(last - first, *source.shape[1:])[(slice(None), *region[1:])]

    alike = source.shape == stored.shape and not source.offset
    part = read_part if alike and len(source.shape) > 1 and not source.heads else None
    matrix = alike and len(source.shape) == 2 and dequantize is not None
    blocks = Blocks(stored.kind, read_blocks) if matrix else None
    return Tensor(source.shape, dtype, read, part, blocks)


def size_of(kind: str, shape: tuple[int, ...]) -> int:
    """Returns the size of a tensor in a file."""
    if kind in _FLOATS:
        return math.prod(shape) * _FLOATS[kind].itemsize
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return math.prod(shape) // block * size


@functools.cache
def _dequantizer(path: Path, kind: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """Returns a function that makes floats of rows of bytes, or None for floats."""
    if kind in _FLOATS:
        return None
    import gguf

    type_ = gguf.GGMLQuantizationType[kind]
    dequantize = functools.partial(gguf.dequantize, qtype=type_)
    try:
        dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[type_][1]), np.uint8))
    except NotImplementedError:
        raise UserError(
            f"{path} holds weights of type {kind}, which the installed package gguf cannot "
            "dequantise; pass a file of another type, such as Q8_0 or Q4_K_M"
        ) from None
    return dequantize


def to_json(sources: Mapping[str, Source]) -> dict[str, Any]:
    """Returns the form in which an index holds sources."""
    return {name: [*source.stored, *source[1:]] for name, source in sources.items()}
