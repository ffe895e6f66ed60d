"""A target's files as other programs read them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dart_jax.weights.gguf.tensors import gguf_files
from dart_jax.weights.tensor_files import open_tensors, weight_files, write_tensors


def once(path: Path, write: Callable[[Path], Any]) -> Path:
    """Returns a directory, which `write` fills if it is not there yet."""
    if not path.exists():
        part = Path(tempfile.mkdtemp(dir=path.parent))
        write(part)
        part.rename(path)  # so that it is complete whenever it is there
    return path


def transformers_directory(model: Path, copy: Path) -> Path:
    """Returns a directory that transformers and the converters made for it read.

    Args:
      model: directory of the model, from `hub.resolve`.
      copy: the directory to write if the weights are those of a GGUF file, in float32.
    """
    if not gguf_files(model):
        return model

    def write(part: Path) -> None:
        for path in model.iterdir():
            if path.name not in weight_files():
                shutil.copyfile(path, part / path.name)
        tensors = open_tensors(model).tensors
        write_tensors(part, tensors, max_shard_size=2**40)

    return once(copy, write)
