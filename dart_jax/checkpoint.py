"""Checkpoints in the layouts of Hugging Face (target) and of the reference (drafter).

A directory holds `config.json` and `model.safetensors`. One table maps a parameter's path to its
name in the file; `Linear` kernels lie transposed there ([out, in]).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
import tokenizers
from jax.typing import DTypeLike

from dart_jax.config import DrafterConfig, TargetConfig, drafter_config
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.pure import Params, abstract_params

WEIGHTS = "model.safetensors"


def load_target(
    directory: str | os.PathLike[str], dtype: DTypeLike = jnp.float32
) -> tuple[TargetConfig, Params]:
    """Reads a Hugging Face Qwen3 directory.

    Raises:
      UserError: the directory, its config or its weights are missing, damaged or do not fit.
    """
    directory = Path(directory)
    config = TargetConfig.from_json(_read_json(directory / "config.json"))
    tensors = _read_tensors(directory / WEIGHTS)
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    names = {path: _target_name(path) for path in _paths(config)}
    return config, _assemble(config, names, tensors, dtype, directory)


def save_target(
    directory: str | os.PathLike[str],
    config: TargetConfig,
    params: Params,
    eos: tuple[int, ...] = (),
) -> None:
    """Writes a directory that `transformers` loads. Each file is replaced atomically.

    Args:
      directory: made where it is missing.
      config: the shapes.
      params: their dtype becomes the file's.
      eos: ids that end a sequence, written to `generation_config.json`.
    """
    if eos:
        text = json.dumps({"eos_token_id": list(eos)}) + "\n"
        write_atomically(Path(directory) / "generation_config.json", text.encode())
    names = {path: _target_name(path) for path in _paths(config)}
    _write(Path(directory), config.to_json(), _flatten(params, names))


def load_eos(directory: str | os.PathLike[str]) -> tuple[int, ...]:
    """Ids that end a sequence: of `generation_config.json`, else of `config.json`."""
    for name in ("generation_config.json", "config.json"):
        path = Path(directory) / name
        eos = _read_json(path).get("eos_token_id") if path.is_file() else None
        if eos is not None:
            ids = tuple(eos) if isinstance(eos, list) else (eos,)
            if not all(isinstance(i, int) for i in ids):
                raise UserError(f"{path}: eos_token_id must be an integer or a list of them")
            return ids
    return ()


def load_tokenizer(directory: str | os.PathLike[str]) -> tokenizers.Tokenizer:
    """Reads `tokenizer.json`.

    Raises:
      UserError: it is missing or damaged.
    """
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"no file {path}; the target needs a tokenizer")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"cannot read {path}: {error}") from None


def load_drafter(
    directory: str | os.PathLike[str], dtype: DTypeLike = jnp.float32
) -> tuple[DrafterConfig, Params, np.ndarray]:
    """Reads a drafter of the reference's layout.

    Returns:
      The config, the parameters and the draft vocabulary: int32 [Vd], target id of each draft id.

    Raises:
      UserError: as `load_target`.
    """
    directory = Path(directory)
    config = drafter_config(_read_json(directory / "config.json"))
    tensors = _read_tensors(directory / WEIGHTS)
    tensors.pop("t2d", None)
    shift = tensors.pop("d2t", np.zeros(config.draft_vocab_size, np.int64))
    if shift.shape != (config.draft_vocab_size,):
        raise UserError(
            f"{directory}: d2t has shape {shift.shape}, not [{config.draft_vocab_size}]"
        )
    ids = np.arange(config.draft_vocab_size) + shift
    if ids.min() < 0 or ids.max() >= config.vocab_size or len(np.unique(ids)) != len(ids):
        raise UserError(f"{directory}: d2t does not map to distinct ids below {config.vocab_size}")
    names = {path: _drafter_name(path) for path in _paths(config)}
    return config, _assemble(config, names, tensors, dtype, directory), ids.astype(np.int32)


def save_drafter(
    directory: str | os.PathLike[str], config: DrafterConfig, params: Params, ids: np.ndarray
) -> None:
    """Writes a directory that the reference loads. Each file is replaced atomically."""
    tensors = _flatten(params, {path: _drafter_name(path) for path in _paths(config)})
    tensors["d2t"] = ids.astype(np.int64) - np.arange(len(ids))
    tensors["t2d"] = np.isin(np.arange(config.vocab_size), ids)
    _write(Path(directory), config.to_json(), tensors)


def check_fit(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Raises UserError unless the drafter was made for a target of these shapes."""
    for name, want, have in (
        ("vocab_size", target.vocab_size, drafter.vocab_size),
        ("hidden_size", target.hidden_size, drafter.target_hidden_size),
        ("embedding size", target.hidden_size, drafter.hidden_size),
    ):
        if want != have:
            raise UserError(
                f"the drafter does not fit the target: {name} is {want} in the target "
                f"and {have} in the drafter; pass a drafter trained for this target"
            )


_Path = tuple[str | int, ...]


def _target_name(path: _Path) -> str:
    name = ".".join(map(str, path)).replace(".kernel", ".weight").replace(".scale", ".weight")
    if name == "embed_tokens":
        return "model.embed_tokens.weight"
    return name if name.startswith("lm_head") else f"model.{name}"


def _drafter_name(path: _Path) -> str:
    name = ".".join(map(str, path)).replace(".kernel", ".weight").replace(".scale", ".weight")
    if path[0] in ("fc", "norm", "lm_head"):
        return name
    if path[0] in ("q_proj", "k_proj", "v_proj", "o_proj"):
        return f"midlayer.self_attn.{name}"
    return f"midlayer.{name}"


def _paths(config: TargetConfig | DrafterConfig) -> Iterator[_Path]:
    for path, _ in jax.tree_util.tree_leaves_with_path(abstract_params(config)):
        yield tuple(key.key for key in path)


def _flatten(params: Params, names: dict[_Path, str]) -> dict[str, np.ndarray]:
    tensors = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = tuple(key.key for key in path)
        value = np.asarray(leaf)
        tensors[names[keys]] = np.ascontiguousarray(value.T if keys[-1] == "kernel" else value)
    return tensors


def _assemble(
    config: TargetConfig | DrafterConfig,
    names: dict[_Path, str],
    tensors: dict[str, np.ndarray],
    dtype: DTypeLike,
    directory: Path,
) -> Params:
    """Puts the file's tensors in the parameters' places; reports all that is wrong at once."""
    problems = [f"unexpected {name}" for name in sorted(set(tensors) - set(names.values()))]

    def place(path: tuple[Any, ...], want: jax.ShapeDtypeStruct) -> jax.Array | None:
        keys = tuple(key.key for key in path)
        name = names[keys]
        if name not in tensors:
            problems.append(f"missing {name}")
            return None
        value = tensors[name]
        transposed = keys[-1] == "kernel"
        shape = want.shape[::-1] if transposed else want.shape
        if value.shape != shape:
            problems.append(f"{name} has shape {value.shape}, the config asks for {shape}")
            return None
        return jnp.asarray((value.T if transposed else value).astype(dtype))

    params = jax.tree_util.tree_map_with_path(place, abstract_params(config))
    if problems:
        raise UserError(f"{directory / WEIGHTS} does not fit its config: {'; '.join(problems)}")
    return params


def _read_json(path: Path) -> dict[str, Any]:
    if not path.parent.is_dir():
        raise UserError(
            f"no directory {path.parent}; pass one that holds config.json and {WEIGHTS}"
        )
    if not path.is_file():
        raise UserError(f"no file {path}")
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"cannot read {path}: it holds no JSON object")
    return content


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        if path.with_name(f"{path.name}.index.json").is_file():
            raise UserError(f"{path.parent}: sharded checkpoints are not supported yet")
        raise UserError(f"no file {path}")
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"cannot read {path}: {error}; the file is damaged or incomplete") from None


def _write(directory: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    dtypes = {np.dtype(ml_dtypes.bfloat16): "bfloat16", np.dtype(np.float32): "float32"}
    float_dtype = next(t.dtype for t in tensors.values() if t.dtype in dtypes)
    text = json.dumps({**config, "torch_dtype": dtypes[float_dtype]}, indent=2) + "\n"
    data = safetensors.numpy.save(tensors, metadata={"format": "pt"})
    write_atomically(directory / "config.json", text.encode())
    # Last: where the weights are, everything is.
    write_atomically(directory / WEIGHTS, data)
