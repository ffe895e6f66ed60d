"""A directory in the Hugging Face layout for a GGUF file.

It lies in the user's cache and holds what is small: the config, the tokenizer with its chat
template, what ends a text, and an index that says where in the GGUF file each tensor lies.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from dart_jax.errors import UserError
from dart_jax.files import user_cache
from dart_jax.models.config import TargetConfig
from dart_jax.weights.gguf import file
from dart_jax.weights.gguf.config import hf_config
from dart_jax.weights.gguf.names import rope_factors, sources
from dart_jax.weights.gguf.tensors import INDEX, to_json
from dart_jax.weights.gguf.tokenizer import backend, stop_ids, tokenizer_config

_FORMAT = 1  # of these directories; another number makes them anew
_OWN_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def target_directory(path: Path) -> Path:
    """Returns the directory for a GGUF file, made the first time.

    Args:
      path: the file, or any of those that it was split into.

    Raises:
      UserError: the file is damaged or not supported, or the cache cannot be written.
    """
    paths = [path.with_name(name).resolve() for name in file.parts(path.name)]
    beside = [path.with_name(name) for name in _OWN_TOKENIZER]
    identity = [str(_FORMAT)]
    for one in (*paths, *beside):
        stat = one.stat() if one.exists() else None
        identity.append(f"{one}\0{stat and (stat.st_size, stat.st_mtime_ns)}")
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:24]
    directory = user_cache() / "gguf" / digest
    if (directory / INDEX).is_file():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{digest}."))
        try:
            _write(work, path)
            os.rename(work, directory)
        except OSError:
            if not (directory / INDEX).is_file():  # otherwise another process was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write {directory}: {error.strerror}; set XDG_CACHE_HOME to a directory that "
            "can be written"
        ) from None
    return directory


def _write(work: Path, path: Path) -> None:
    """Writes the files of the directory."""
    files = file.read(path)
    config = hf_config(files, rope_factors(files))
    found = sources(files, TargetConfig.from_json(config))
    try:
        backend(path, files.metadata).save(str(work / "tokenizer.json"))
        _save(work / "tokenizer_config.json", tokenizer_config(files.metadata))
    except UserError:
        if not path.with_name("tokenizer.json").is_file():
            raise
        for name in _OWN_TOKENIZER:
            if path.with_name(name).is_file():
                shutil.copy(path.with_name(name), work / name)
    _save(work / "config.json", config)
    _save(work / "generation_config.json", {"eos_token_id": stop_ids(files.metadata) or None})
    names = [str(one.resolve()) for one in files.paths]
    _save(work / INDEX, {"files": names, "tensors": to_json(found)})


def _save(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))
