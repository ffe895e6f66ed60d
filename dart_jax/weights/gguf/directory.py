"""A directory in the Hugging Face layout for a GGUF file.

It lies in the user's cache and holds what is small: the config, the tokenizer with its chat
template, what ends a text, and an index that says where in the GGUF file each tensor lies.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dart_jax.errors import UserError
from dart_jax.files import make_once, user_cache
from dart_jax.models.config import TargetConfig
from dart_jax.weights.gguf import file
from dart_jax.weights.gguf.config import hf_config
from dart_jax.weights.gguf.names import rope_factors, sources
from dart_jax.weights.gguf.tensors import INDEX, to_json
from dart_jax.weights.gguf.tokenizer import backend, stop_ids, tokenizer_config

_FORMAT = 2  # of these directories; another number makes them anew
_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_BESIDE = (_TOKENIZER, _CONFIG, "special_tokens_map.json", "chat_template.jinja")


def target_directory(path: Path) -> Path:
    """Returns the directory for a GGUF file, made the first time.

    Args:
      path: the file, or any of those that it was split into.

    Raises:
      UserError: the file is damaged or not supported, or the cache cannot be written.
    """
    paths = [path.with_name(name).resolve() for name in file.parts(path.name)]
    beside = [path.with_name(name) for name in _BESIDE]
    identity = [str(_FORMAT)]
    for one in (*paths, *beside):
        stat = one.stat() if one.exists() else None
        identity.append(f"{one}\0{stat and (stat.st_size, stat.st_mtime_ns)}")
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:24]

    def write(work: Path) -> None:
        content = _content(path)
        work.mkdir()
        for name, text in content.items():
            (work / name).write_text(text)

    return make_once(user_cache() / "gguf" / digest, write)


def _content(path: Path) -> dict[str, str]:
    """The files of the directory, by name."""
    files = file.read(path)
    config = hf_config(files, rope_factors(files))
    tensors = sources(files, TargetConfig.from_json(config))
    texts = {_CONFIG: json.dumps(tokenizer_config(files.metadata))}
    try:
        texts[_TOKENIZER] = backend(path, files.metadata).to_str()
    except UserError:
        beside = [path.with_name(name) for name in _BESIDE]
        if not beside[0].is_file():
            raise
        texts |= {one.name: one.read_text() for one in beside if one.is_file()}
    index = {"files": [str(one.resolve()) for one in files.paths], "tensors": to_json(tensors)}
    return texts | {
        "config.json": json.dumps(config),
        "generation_config.json": json.dumps({"eos_token_id": stop_ids(files.metadata) or None}),
        INDEX: json.dumps(index),
    }
