"""The metadata of a GGUF file, and where its tensors lie; of all files, if it was split."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dart_jax.errors import UserError

_SUFFIX = ".gguf"
# One of the files that `gguf-split` writes.
_SPLIT = re.compile(r"(.+-)(\d{5})(-of-(\d{5})\.gguf)", re.IGNORECASE)
# Files of the Hugging Face layout that take the place of what a GGUF file next to them holds.
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
BESIDE = (TOKENIZER, TOKENIZER_CONFIG, "special_tokens_map.json", TEMPLATE)


class Stored(NamedTuple):
    """A tensor as it lies in a file.

    Attributes:
      file: the number of the file, from 0.
      offset: of its first byte.
      kind: the name of its type in `gguf.GGMLQuantizationType`.
      shape: the outermost axis first, as NumPy has it; in files it is the last.
    """

    file: int
    offset: int
    kind: str
    shape: tuple[int, ...]


class GgufFiles(NamedTuple):
    """One model.

    Attributes:
      paths: its files, in their order.
      metadata: the fields of the first one.
      tensors: of all of them, by name.
    """

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]


def is_named(name: str) -> bool:
    """Returns True if a file's name is that of a GGUF file, in capitals or not."""
    return name.lower().endswith(_SUFFIX)


def parts(name: str) -> list[str]:
    """Returns the names of a model's files: several if the name is of one that was split."""
    match = _SPLIT.fullmatch(name)
    if match is None:
        return [name]
    stem, _, end, count = match.groups()
    return [f"{stem}{n:05}{end}" for n in range(1, int(count) + 1)]


def read(path: Path) -> GgufFiles:
    """Reads what comes before the weights.

    Args:
      path: the file, or any of those that it was split into.

    Raises:
      UserError: a file is missing or damaged, or has another order of bytes than this machine.
    """
    paths = tuple(path.with_name(name) for name in parts(path.name))
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise UserError(f"{path.parent} lacks {', '.join(missing)} of the files of {path.name}")
    readers = [_open(part) for part in paths]
    tensors: dict[str, Stored] = {}
    for number, reader in enumerate(readers):
        for tensor in reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            offset, kind = int(tensor.data_offset), tensor.tensor_type.name
            tensors[tensor.name] = Stored(number, offset, kind, shape)
    metadata = {name: field.contents() for name, field in readers[0].fields.items()}
    return GgufFiles(paths, metadata, tensors)


def copy_without(path: Path, field: str) -> str:
    """Returns the command that copies a file without a field of its metadata."""
    return f"gguf-new-metadata --force --remove-metadata {field} {shlex.quote(str(path))} NEW.gguf"


def _open(path: Path) -> Any:
    """Opens a file with the `gguf` package."""
    import gguf  # imports more than it needs

    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # the package raises whatever NumPy raises
        reason = " ".join(str(error).split())
        raise UserError(
            f"cannot read {path}: {reason}; the GGUF file is damaged or incomplete, or its type of "
            "weights is not supported by the installed package: pip install -U gguf"
        ) from None
    if reader.byte_order != "I":
        raise UserError(
            f"{path} was written for machines with the other order of bytes; convert it with "
            "gguf-convert-endian"
        )
    return reader
