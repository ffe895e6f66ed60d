"""The file `generation_config.json` of a target: what ends its texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError, warn
from dart_jax.files import read_json

FILE = "generation_config.json"


def read_options(directory: Path | None) -> Mapping[str, Any] | None:
    """Reads a target's `generation_config.json`, if it has one. Raises UserError if the file is
    damaged."""
    path = None if directory is None else directory / FILE
    return read_json(path) if path is not None and path.is_file() else None


def load_eos(directory: str | os.PathLike[str], vocab_size: int | None = None) -> tuple[int, ...]:
    """Reads the ids that end a sequence, from `generation_config.json`, else from `config.json`,
    of the whole model or of its text part.

    Args:
      directory: the target's.
      vocab_size: the target's; it cannot write other ids, which are left out with a warning.

    Raises:
      UserError: a file is damaged, or the ids in it are not integers.
    """
    for path in (Path(directory) / name for name in (FILE, "config.json")):
        fields = read_json(path) if path.is_file() else {}
        text = fields.get("text_config")
        eos = fields.get("eos_token_id")
        if eos is None and isinstance(text, Mapping):
            eos = text.get("eos_token_id")
        if eos is None:
            continue
        ids = tuple(eos) if isinstance(eos, list) else (eos,)
        if not all(type(id) is int for id in ids):
            raise UserError(f"{path}: eos_token_id must be an integer or a list of them")
        own = tuple(id for id in ids if vocab_size is None or 0 <= id < vocab_size)
        if strange := ", ".join(str(id) for id in ids if id not in own):
            warn(
                f"{path}: the target cannot write eos_token_id {strange}; its ids are in "
                f"0..{(vocab_size or 0) - 1}"
            )
        return own
    return ()
