"""Parameters on the device, from the tensors of checkpoint files and back.

Tensors are read one by one into host buffers of the parameters' final shapes and dtypes. A buffer
moves to the device as soon as it is full, so host memory holds little more than one parameter and
one tensor. Where devices share a model, a process reads only the parts that its devices have.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable

import jax
import ml_dtypes
import numpy as np

from dart_jax.errors import UserError
from dart_jax.memory import aligned
from dart_jax.models.kernels.int8 import Kernel, round_one
from dart_jax.models.kernels.tiles import BLOCK_TYPES, Tiles, pack_blocks
from dart_jax.models.networks.pure import Params, abstract_params
from dart_jax.models.platform.weights import WeightsForm
from dart_jax.models.sharding.placement import DEFAULT, Part, Placement
from dart_jax.weights.formats.layouts import (
    HEAD,
    AnyConfig,
    Entry,
    ParamPath,
    Piece,
    layout,
    leaves,
)
from dart_jax.weights.formats.safetensors_file import Region, Tensor
from dart_jax.weights.tensor_files import TensorFiles

STORED_DTYPES = ("float64", "float32", "float16", "bfloat16")
_MAX_PROBLEMS = 8
_Read = Callable[[Region], np.ndarray]
_HALVES = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def load_params(
    files: TensorFiles,
    config: AnyConfig,
    dtype: np.dtype,
    form: WeightsForm = WeightsForm(),
    *,
    place: Placement = DEFAULT,
) -> Params:
    """Loads the files' tensors onto the device.

    Args:
      files: the tensors; each must belong to the model.
      config: the model's config.
      dtype: of the parameters, float32, bfloat16 or float16.
      form: as for `checkpoint.load_target`.
      place: puts each parameter onto the devices, by parts; in every process alike.

    Raises:
      UserError: tensors are missing, unexpected or misshapen, or hold NaN or infinite weights; one
        message names them.
    """
    entries, abstract = layout(config, files.tensors), abstract_params(config, dtype=dtype)
    _check(files, entries)
    shapes = {path: leaf.shape for path, leaf in leaves(abstract)}
    dtypes = {path: leaf.dtype for path, leaf in leaves(abstract)}
    if form.tiles and dtype == np.float32:
        for half in _HALVES:
            dtypes |= dict.fromkeys(_kernels_in(half, files, entries), half)
    left = collections.Counter(piece.path for e in entries.values() for piece in e.pieces)
    buffers: dict[ParamPath, list[tuple[Part, np.ndarray]]] = {}
    loaded: dict[ParamPath, Kernel | Tiles] = {}
    damaged = dict.fromkeys(entries, 0)
    for name, tensor in files.tensors.items():
        if form.blocks and _stays_in_blocks(tensor, entries[name]):
            assert tensor.blocks is not None
            for piece, region in entries[name].regions():
                rows = tensor.blocks.read(region[0].start, region[0].stop)
                loaded[piece.path], count = pack_blocks(tensor.blocks.type, rows)
                damaged[name] += count
            continue
        read = None
        for piece, region in entries[name].regions():
            path = piece.path
            if path not in buffers:
                buffers[path] = [
                    (share, aligned(_size(share.region), dtypes[path]))
                    for share in place.parts(path, shapes[path])
                ]
            if read is None:
                held = sum(buffer.size for _, buffer in buffers[path])
                read = _reader(tensor, whole=held == math.prod(shapes[path]))
            for share, buffer in buffers[path]:
                count = _fill_part(buffer, share.region, piece, region, read)
                damaged[name] += share.counted * count
            left[path] -= 1
            if not left[path]:
                # Block: pending copies would accumulate in host memory.
                values = [buffer for _, buffer in buffers.pop(path)]
                value = place.put(path, shapes[path], values)
                loaded[path] = jax.block_until_ready(round_one(path, value) if form.int8 else value)
                del values, value
    counts = place.over_processes(np.array(list(damaged.values()), np.int32)).tolist()
    numbers = zip(damaged, counts, strict=True)
    if faults := [f"{name} ({count:,} of them)" for name, count in numbers if count]:
        raise UserError(
            f"{files.path} has weights that are NaN or infinite in {dtype.name}, in "
            f"{_listed(faults)}; pass a checkpoint without them"
        )
    return jax.tree.unflatten(jax.tree.structure(abstract), [loaded[path] for path in shapes])


def stored_tensors(config: AnyConfig, params: Params) -> dict[str, Tensor]:
    """Returns the tensors to write for these parameters, by name."""
    by_path = dict(leaves(params))
    return {name: _stored(by_path, entry) for name, entry in layout(config).items()}


def _kernels_in(dtype: np.dtype, files: TensorFiles, entries: dict[str, Entry]) -> set[ParamPath]:
    """Returns the kernels of linear layers and embeddings all of whose tensors have a dtype."""
    kernels, others = set[ParamPath](), set[ParamPath]()
    for name, entry in entries.items():
        paths = kernels if files.tensors[name].dtype == dtype else others
        paths.update(piece.path for piece in entry.pieces if _in_tiles(piece.path))
    return kernels - others


def _in_tiles(path: ParamPath) -> bool:
    """Returns True if a parameter is one that `platform.weights.pack` stores in tiles."""
    return path[-1] in ("kernel", "embed_tokens")


def _stays_in_blocks(tensor: Tensor, entry: Entry) -> bool:
    """Returns True if a tensor has blocks that are computed as they are stored."""
    if tensor.blocks is None or tensor.blocks.type not in BLOCK_TYPES:
        return False
    return all(piece.expert is None and _in_tiles(piece.path) for piece in entry.pieces)


def _check(files: TensorFiles, entries: dict[str, Entry]) -> None:
    cure = "if the embedding is the head, set tie_word_embeddings to true in config.json"
    missing = [name for name in entries if name not in files.tensors]
    problems = [f"missing {name}" + f" ({cure})" * (name == HEAD) for name in missing]
    problems += [f"unexpected {name}" for name in files.tensors if name not in entries]
    for name in [name for name in files.tensors if name in entries]:
        tensor, want = files.tensors[name], entries[name].shape
        if tensor.shape != want:
            problems.append(f"{name} has shape {tensor.shape}, the config requires {want}")
        elif tensor.dtype.name not in STORED_DTYPES:
            dtypes = ", ".join(STORED_DTYPES)
            problems.append(f"{name} has dtype {tensor.dtype}, not one of {dtypes}")
    if problems:
        raise UserError(f"{files.path} does not fit its config: {_listed(problems)}")


def _listed(problems: list[str]) -> str:
    more = len(problems) - _MAX_PROBLEMS
    return "; ".join(problems[:_MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def _size(region: Region) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in region)


def _reader(tensor: Tensor, whole: bool) -> _Read:
    """Reads regions of a tensor, from its file or, where all are `whole` or it has to be, from all
    of it."""
    if not whole and tensor.read_part is not None:
        return tensor.read_part
    read = functools.cache(tensor.read)
    return lambda region: read()[region]


def _fill_part(buffer: np.ndarray, held: Region, piece: Piece, stored: Region, read: _Read) -> int:
    """Fills what a buffer has of a piece, and counts the NaN and infinite numbers in it.

    `buffer` is the part `held` of the parameter; the piece is the region `stored` of its tensor, of
    which `read` reads regions.
    """
    if piece.expert is not None:
        if not held[0].start <= piece.expert < held[0].stop:
            return 0
        buffer, held = buffer[piece.expert - held[0].start], held[1:]
    if piece.transposed:
        held = (*held[:-2], held[-1], held[-2])
    region = tuple(
        slice(axis.start + part.start, axis.start + part.stop)
        for axis, part in zip(stored, held, strict=True)
    )
    _fill(buffer, piece.transposed, read(region))
    return _not_finite(buffer)


def _fill(part: np.ndarray, transposed: bool, stored: np.ndarray) -> None:
    """Copies what is stored of a part of a parameter, converting the dtype."""
    to = part.swapaxes(-1, -2) if transposed else part
    with np.errstate(all="ignore"):  # infinities and NaN are converted as well
        if not transposed:
            np.copyto(to, stored, casting="unsafe")
            return
        # Transpose in tiles that stay in the processor's cache: several times as fast as all at
        # once. Copy as bits: NumPy is slower with dtypes that are not its own.
        bits = np.dtype(f"u{part.dtype.itemsize}")
        for at in np.ndindex(stored.shape[:-2]):
            rows, columns = stored[at], to[at].view(bits)
            for j in range(0, rows.shape[1], 1024):
                for i in range(0, len(rows), 16):
                    tile = rows[i : i + 16, j : j + 1024].astype(part.dtype)
                    columns[i : i + 16, j : j + 1024] = tile.view(bits)


def _not_finite(filled: np.ndarray) -> int:
    """Counts the NaN and infinite numbers."""
    width = filled.dtype.itemsize
    infinity = np.array(np.inf, filled.dtype).view(f"u{width}").item()
    # As integers, the positive ones are the largest if signed, and the negative ones if unsigned.
    # Two maxima need no memory, and cost less than reading the file.
    largest = int(filled.view(f"i{width}").max(initial=0))
    most_negative = int(filled.view(f"u{width}").max(initial=0)) - (1 << (8 * width - 1))
    if largest < infinity and most_negative < infinity:
        return 0
    return int(np.count_nonzero(~np.isfinite(filled)))


def _stored(params: dict[ParamPath, jax.Array], entry: Entry) -> Tensor:
    """Returns the tensor to write for an entry."""

    def array(piece: Piece) -> np.ndarray:
        parameter = params[piece.path]
        # Only one expert at a time goes to the host.
        value = np.asarray(parameter if piece.expert is None else parameter[piece.expert])
        return value.swapaxes(-1, -2) if piece.transposed else value

    def read() -> np.ndarray:
        parts = [array(piece) for piece in entry.pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)

    return Tensor(entry.shape, params[entry.pieces[0].path].dtype, read)
