"""The tensors of a checkpoint directory: in one file, or in shards listed in an index."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

from dart_jax.errors import UserError
from dart_jax.files import atomic_path, contents, read_json, write_atomically
from dart_jax.weights.formats.layouts import PAIR_SCORES as PREFIX
from dart_jax.weights.formats.safetensors_file import Tensor, open_safetensors
from dart_jax.weights.formats.torch_file import open_torch
from dart_jax.weights.gguf.tensors import INDEX as GGUF_INDEX
from dart_jax.weights.gguf.tensors import open_gguf

WEIGHTS = "model.safetensors"
# A drafter's pair scores: beside the weights, so that readers that do not know them find the rest
# as it is without them.
PAIR_SCORES = "pair_scores.safetensors"
ADAPTER = "adapter_config.json"  # of a LoRA adapter, which is refused
_TORCH_WEIGHTS = "pytorch_model.bin"
_OPEN = {WEIGHTS: open_safetensors, _TORCH_WEIGHTS: open_torch}


class TensorFiles(NamedTuple):
    """The tensors of a directory.

    Attributes:
      path: the file of weights, or the index of the shards.
      tensors: by name, in the order of the index and, within a shard, of the file.
    """

    path: Path
    tensors: dict[str, Tensor]


def open_tensors(directory: Path) -> TensorFiles:
    """Reads the headers of all files of weights; prefers safetensors to PyTorch files. Raises
    UserError if there are none, or one is missing or damaged."""
    if (directory / GGUF_INDEX).is_file():
        return TensorFiles(*open_gguf(directory))
    for weights, open_file in _OPEN.items():
        path, index = directory / weights, _index(directory / weights)
        if path.is_file():
            return TensorFiles(path, open_file(path))
        if index.is_file():
            return _open_shards(index, open_file)
    raise UserError(
        f"no weights in {directory}, which holds {contents(directory)}; it needs {WEIGHTS}, or "
        f"shards and {WEIGHTS}.index.json, or {_TORCH_WEIGHTS}"
    )


def open_pair_scores(directory: Path) -> dict[str, Tensor]:
    """Reads the header of the file of pair scores, whose tensors have the names of `layouts` then;
    raises UserError if it is missing or damaged."""
    path = directory / PAIR_SCORES
    if not path.is_file():
        raise UserError(
            f"no file {path}, although config.json has a pair_rank; add the file, or remove "
            "pair_rank to draft without pair scores"
        )
    return {PREFIX + name: tensor for name, tensor in open_safetensors(path).items()}


def write_pair_scores(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Takes the pair scores out of a drafter's tensors, and replaces their file, atomically, or
    removes it if there are none."""
    names = [name for name in tensors if name.startswith(PREFIX)]
    pairs = {name.removeprefix(PREFIX): tensors.pop(name) for name in names}
    path = directory / PAIR_SCORES
    if not pairs:
        path.unlink(missing_ok=True)
        return
    with atomic_path(path) as part:
        _write(part, pairs)


def write_tensors(directory: Path, tensors: Mapping[str, Tensor], max_shard_size: int) -> None:
    """Replaces a directory's weights with one file, or with shards of at most `max_shard_size`
    bytes and an index; a single tensor may be larger.

    Each file is written atomically; the one that readers open first is written last. Existing
    weights in another layout are removed. The tensors of one file are in memory together.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: math.prod(tensor.shape) * tensor.dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    path, index = directory / WEIGHTS, _index(directory / WEIGHTS)
    old = {path, index, *_written_before(directory)}
    if split.is_sharded:  # first: new shards may have the names of old ones
        for file in old:
            file.unlink(missing_ok=True)
    for file, names in split.filename_to_tensors.items():
        with atomic_path(directory / file) as part:
            _write(part, {name: tensors[name] for name in names})
    if split.is_sharded:
        content = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_atomically(index, (json.dumps(content, indent=2) + "\n").encode())
        return
    for file in old - {path}:
        file.unlink(missing_ok=True)


def _index(weights: Path) -> Path:
    return weights.with_name(f"{weights.name}.index.json")


def _weight_map(index: Path) -> dict[str, str]:
    """Reads from an index which file holds each tensor."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise UserError(f"cannot read {index}: it has no weight_map")
    for file in names.values():
        if not isinstance(file, str) or Path(file).is_absolute() or ".." in Path(file).parts:
            raise UserError(f"{index} names {file!r}, which is not a file in its directory")
    return names


def _open_shards(index: Path, open_file: Callable[[Path], dict[str, Tensor]]) -> TensorFiles:
    names = _weight_map(index)
    paths = {file: index.parent / file for file in names.values()}
    if missing := [file for file, path in paths.items() if not path.is_file()]:
        raise UserError(f"{index} lists files that are missing: {', '.join(missing)}")
    tensors: dict[str, Tensor] = {}
    for file, path in paths.items():
        for name, tensor in open_file(path).items():
            if name not in tensors or names.get(name) == file:  # in two files: the index decides
                tensors[name] = tensor
    return TensorFiles(index, tensors)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file that PyTorch programs can read."""
    # The library would write wrong values for arrays that are not contiguous.
    arrays = {name: np.ascontiguousarray(tensor.read()) for name, tensor in tensors.items()}
    save_file(arrays, path, metadata={"format": "pt"})


def _written_before(directory: Path) -> set[Path]:
    """Returns the shards of the existing index, if it can be read."""
    index = _index(directory / WEIGHTS)
    try:
        files = _weight_map(index).values()
    except UserError:
        return set()
    return {directory / file for file in files if file.endswith(".safetensors")}
