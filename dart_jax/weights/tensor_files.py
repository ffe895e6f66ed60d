"""Tensors of a checkpoint directory: in one file, or in shards listed in an index."""

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
from dart_jax.weights import formats
from dart_jax.weights.formats.safetensors_file import Tensor, open_safetensors
from dart_jax.weights.formats.torch_file import open_torch
from dart_jax.weights.gguf.tensors import INDEX as GGUF_INDEX
from dart_jax.weights.gguf.tensors import open_gguf

WEIGHTS = "model.safetensors"
# A drafter's pair scores: next to the weights, so that readers that do not know them find the rest
# as it is without them.
PAIR_SCORES, _PAIRS = f"{formats.PAIR_SCORES}.safetensors", f"{formats.PAIR_SCORES}."
ADAPTER = "adapter_config.json"  # of a LoRA adapter, which is refused
_INDEX = ".index.json"  # of shards
_TORCH_WEIGHTS = "pytorch_model.bin"
_OPEN = {WEIGHTS: open_safetensors, _TORCH_WEIGHTS: open_torch}


class TensorFiles(NamedTuple):
    """Tensors of a directory.

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
        if (path := directory / weights).is_file():
            return TensorFiles(path, open_file(path))
        if (index := directory / f"{weights}{_INDEX}").is_file():
            return _open_shards(index, open_file)
    raise UserError(
        f"no weights in {directory}, which holds {contents(directory)}; it needs {WEIGHTS}, or "
        f"shards and {WEIGHTS}{_INDEX}, or {_TORCH_WEIGHTS}"
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
    return {_PAIRS + name: tensor for name, tensor in open_safetensors(path).items()}


def write_tensors(directory: Path, tensors: Mapping[str, Tensor], max_shard_size: int) -> None:
    """Replaces a directory's weights with one file, or with shards of at most `max_shard_size`
    bytes and an index; a single tensor may be larger. Pair scores have their own file.

    Each file is written atomically; the one that readers open first is written last. Existing
    weights in another layout are removed. The tensors of one file are in memory together.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    split = split_state_dict_into_shards_factory(
        {name: tensor for name, tensor in tensors.items() if not name.startswith(_PAIRS)},
        get_storage_size=lambda tensor: math.prod(tensor.shape) * tensor.dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    files = {
        file: {n: tensors[n] for n in names} for file, names in split.filename_to_tensors.items()
    }
    if pairs := {n.removeprefix(_PAIRS): t for n, t in tensors.items() if n.startswith(_PAIRS)}:
        files = {PAIR_SCORES: pairs, **files}
    index = directory / f"{WEIGHTS}{_INDEX}"
    old = {directory / name for name in (WEIGHTS, PAIR_SCORES)} | {index}
    old.update(directory.glob("model-*-of-*.safetensors"))
    if split.is_sharded:  # first: new shards may have the names of old ones
        for file in old:
            file.unlink(missing_ok=True)
    for file, content in files.items():
        with atomic_path(directory / file) as part:
            # The library would write wrong values for arrays that are not contiguous.
            arrays = {name: np.ascontiguousarray(each.read()) for name, each in content.items()}
            save_file(arrays, part, metadata={"format": "pt"})  # which PyTorch programs want
    if split.is_sharded:
        content = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_atomically(index, (json.dumps(content, indent=2) + "\n").encode())
        return
    for file in old - {directory / name for name in files}:
        file.unlink(missing_ok=True)


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
