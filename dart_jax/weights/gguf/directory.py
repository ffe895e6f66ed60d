"""A directory in the Hugging Face layout for a GGUF file.

It lies in the user's cache and holds what is small: the config, the tokenizer with its chat
template, what ends a text, and an index that says where in the GGUF file each tensor lies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.files import make_once, read_json, user_cache
from dart_jax.models.config import TargetConfig
from dart_jax.weights.gguf import file
from dart_jax.weights.gguf.config import NOTES, hf_config
from dart_jax.weights.gguf.names import rope_factors, sources
from dart_jax.weights.gguf.tensors import INDEX, to_json
from dart_jax.weights.gguf.tokenizer import (
    backend,
    check_fields,
    check_vocabulary,
    notes,
    stop_ids,
    tokenizer_config,
)

_FORMAT = 6  # of these directories; another number makes them anew
# Fields of general.sampling -> their names in `transformers`.
_SAMPLING = {name: name for name in ("top_k", "top_p", "min_p")}
_SAMPLING |= {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
_NOT_SUPPORTED = ("general.sampling.mirostat", "general.sampling.xtc_probability")  # unless 0


def target_directory(path: Path) -> Path:
    """Returns the directory for a GGUF file, made the first time.

    Args:
      path: the file, or any of those that it was split into.

    Raises:
      UserError: the file is damaged or not supported, or the cache cannot be written.
    """
    path = path.absolute()
    paths = [path.with_name(name).resolve() for name in file.parts(path.name)]
    beside = [path.with_name(name) for name in file.BESIDE]
    identity = [str(_FORMAT)]
    for one in (*paths, *beside):
        stat = one.stat() if one.exists() else None
        identity.append(f"{one}\0{stat and (stat.st_size, stat.st_mtime_ns)}")
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:24]

    def write(work: Path) -> None:
        content = _content(path)
        work.mkdir()
        for name, text in content.items():
            (work / name).write_text(text, encoding="utf-8")

    return make_once(user_cache() / "gguf" / digest, write)


def _content(path: Path) -> dict[str, str]:
    """Returns the files of the directory, by name."""
    files = file.read(path)
    config = hf_config(files, rope_factors(files))
    tensors = sources(files, TargetConfig.from_json(config))
    texts, told = _tokenizer(path, files.metadata)
    recommended = [field for field in _NOT_SUPPORTED if files.metadata.get(field)]
    told += [f"{path} recommends {field}, which is not supported" for field in recommended]
    config[NOTES] = [*config.get(NOTES, ()), *told]
    index = {"files": [str(one.resolve()) for one in files.paths], "tensors": to_json(tensors)}
    return texts | {
        "config.json": json.dumps(config),
        "generation_config.json": json.dumps(_generation_config(files.metadata)),
        INDEX: json.dumps(index),
    }


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What ends a text, and how its authors sample."""
    config: dict[str, Any] = {"eos_token_id": stop_ids(metadata) or None}
    for field, name in _SAMPLING.items():
        value = metadata.get(f"general.sampling.{field}")
        if value is not None:
            config[name] = float(f"{value:.6g}") if isinstance(value, float) else value
    if len(config) > 1:
        config["do_sample"] = config.get("temperature") != 0
    return config


def _tokenizer(path: Path, metadata: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The tokenizer's files, by name, and notes about them. What lies beside the GGUF file takes
    the place of what it holds: a tokenizer with its config, and a chat template by itself or in a
    config."""
    check_fields(path, metadata)
    beside = {name: path.with_name(name) for name in file.BESIDE}
    beside = {name: one for name, one in beside.items() if one.is_file()}
    config, told = tokenizer_config(metadata), list[str]()
    config["gguf_directory"] = str(path.parent)  # where a user would put a chat template
    others = read_json(beside[file.TOKENIZER_CONFIG]) if file.TOKENIZER_CONFIG in beside else {}
    if others.get("chat_template"):
        config["chat_template"] = others["chat_template"]
    if file.TOKENIZER in beside:
        check_vocabulary(path, beside[file.TOKENIZER], metadata)
        config |= others
        texts = {name: _text(one) for name, one in beside.items()}
    else:
        told = notes(path, metadata)
        texts = {name: _text(one) for name, one in beside.items() if name == file.TEMPLATE}
        texts[file.TOKENIZER] = backend(path, metadata).to_str()
    return texts | {file.TOKENIZER_CONFIG: json.dumps(config)}, told


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; convert it first") from None
