"""LoRA adapters, in the layout of PEFT, merged into their base model as its tensors are read.

A directory holds `adapter_config.json`, `adapter_model.safetensors` (or `.bin`) and often a
tokenizer; or an adapter lies beside the `config.json` and the weights of its base, where
transformers applies it, too.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.files import make_once, user_cache
from dart_jax.weights.layouts import EMBEDDING, HEAD, text_tensor
from dart_jax.weights.safetensors_file import Tensor, open_safetensors
from dart_jax.weights.tensor_files import ADAPTER as CONFIG
from dart_jax.weights.tensor_files import TensorFiles, read_json, weight_files
from dart_jax.weights.torch_file import open_torch

_TEMPLATES = "additional_chat_templates"
_WEIGHTS = {"adapter_model.safetensors": open_safetensors, "adapter_model.bin": open_torch}

# Fields that are read, and fields that change nothing: those matter in training, or the adapter's
# tensors say the same.
_READ = (
    "alpha_pattern base_model_name_or_path init_lora_weights lora_alpha peft_type revision "
    "use_rslora"
)
_UNUSED = (
    "auto_mapping base_model_class bias corda_config ensure_weight_tying eva_config "
    "exclude_modules fan_in_fan_out inference_mode layers_pattern layers_to_transform lora_dropout "
    "loftq_config megatron_config megatron_core modules_to_save peft_version qalora_group_size r "
    "rank_pattern runtime_config target_modules task_type"
)
# Values of `init_lora_weights` with which the base stays as it is.
_PLAIN_INIT = (True, False, None, "gaussian", "orthogonal", "eva")
_CURE = "merge it with PEFT (merge_and_unload, save_pretrained) and pass the result"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """The options of an adapter that change the result.

    Attributes:
      alpha: numerator of the factor on an update.
      alpha_pattern: other numerators, by the end of a module's name or a regular expression for it.
      rank_stabilized: whether the denominator is the square root of the rank instead of the rank.
    """

    alpha: float
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    rank_stabilized: bool = False

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> LoraConfig:
        """Reads an `adapter_config.json`.

        Raises:
          UserError: it is of another method than LoRA, or names an option that would change the
            result and is not supported.
        """
        if json.get("peft_type") != "LORA":
            raise _refusal(f"peft_type={json.get('peft_type')!r}")
        if json.get("init_lora_weights") not in _PLAIN_INIT:  # it changes the base's weights
            raise _refusal(f"init_lora_weights={json['init_lora_weights']!r}")
        for name in json.keys() - {*_READ.split(), *_UNUSED.split()}:
            if json[name] not in (None, False, [], {}):
                raise _refusal(f"{name}={json[name]!r}")
        alpha, patterns = json.get("lora_alpha", 8), json.get("alpha_pattern") or {}
        numbers = [alpha, *(patterns.values() if isinstance(patterns, dict) else [None])]
        if not all(type(number) in (int, float) for number in numbers):
            raise UserError(f"{CONFIG} has lora_alpha or alpha_pattern other than numbers")
        return cls(alpha, tuple(patterns.items()), bool(json.get("use_rslora")))

    def scale(self, module: str, rank: int) -> float:
        """The factor on the update of a module."""
        matches = (a for key, a in self.alpha_pattern if re.match(rf"(.*\.)?({key})$", module))
        alpha = next(matches, self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)


def with_base(
    directory: Path, resolve: Callable[[str, str | None], Path], tokenizer: Sequence[str]
) -> Path:
    """Returns a directory with an adapter and its base.

    Args:
      directory: of a checkpoint; if it is an adapter alone, the result is a directory of links, in
        the user's cache, to its files and those of its base. Its tokenizer comes before the base's.
        A path to the base is taken from the current directory, as by PEFT, else from this one.
      resolve: name and revision of a base -> its directory.
      tokenizer: patterns of the names of a tokenizer's files.

    Raises:
      UserError: there is no base, or the adapter's config asks for what is not supported.
    """
    own = _entries(directory)
    # Programs that train adapters may leave the base's config.json beside them.
    alone = "config.json" not in own or any(name in own for name in _WEIGHTS)
    if CONFIG not in own or not alone or any(name in own for name in weight_files()):
        return directory
    json = read_json(directory / CONFIG)
    LoraConfig.from_json(json)
    name, revision = json.get("base_model_name_or_path"), json.get("revision")
    if not isinstance(name, str) or not name:
        raise UserError(f"{directory / CONFIG} names no base_model_name_or_path; add it")
    inside = (directory / name).is_dir() and not Path(name).is_dir()
    try:
        base = resolve(str(directory / name) if inside else name, revision or None)
    except UserError as error:
        raise UserError(f"{directory} is a LoRA adapter of {name!r} ({CONFIG}): {error}") from None
    files = _entries(base)
    if CONFIG in files:
        raise UserError(f"{directory} is an adapter of an adapter, {name!r}: {_CURE}")
    names = {CONFIG, *_WEIGHTS}
    if any(name.startswith("tokenizer") for name in own):
        of_tokenizer = {name for name in own | files if _fits(name, tokenizer)}
        files = {name: path for name, path in files.items() if name not in of_tokenizer}
        names |= of_tokenizer
    files |= {name: path for name, path in own.items() if name in names}
    links = {name: str(path.resolve()) for name, path in sorted(files.items())}
    digest = hashlib.sha256(repr(links).encode()).hexdigest()[:24]

    def link(joined: Path) -> None:
        joined.mkdir()
        for file, path in links.items():
            os.symlink(path, joined / file)

    return make_once(user_cache() / "adapters" / digest, link)


def _entries(directory: Path) -> dict[str, Path]:
    """The files of a checkpoint, and its folder of chat templates, by name."""
    paths = directory.iterdir()
    return {path.name: path for path in paths if path.is_file() or path.name == _TEMPLATES}


def _fits(name: str, tokenizer: Sequence[str]) -> bool:
    """Returns whether an entry is a tokenizer's: a file, or the folder of a pattern."""
    return any(fnmatch.fnmatch(name, pattern.partition("/")[0]) for pattern in tokenizer)


def merged(files: TensorFiles, directory: Path, *, tied: bool) -> TensorFiles:
    """Returns the tensors of a target with the adapter that lies in its directory, if there is one.

    An update is added in float32 as a tensor is read: `W + scale B A`. Tensors that the adapter
    holds whole (`modules_to_save`, biases) replace the base's.

    Args:
      files: the base's tensors.
      directory: where they come from.
      tied: whether head and embedding are one tensor, which the adapter may change for one of them.

    Raises:
      UserError: the adapter is damaged, not supported or does not fit.
    """
    if not (directory / CONFIG).is_file():
        return files
    config = LoraConfig.from_json(read_json(directory / CONFIG))
    path = _weights(directory)
    tensors = dict(files.tensors)
    updates: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _WEIGHTS[path.name](path).items():
        name = name.removeprefix("base_model.model.")
        place = text_tensor(name.replace(".modules_to_save.", ".").replace(".base_layer.", "."))
        if place is None:
            continue  # of the vision part
        module, part = _split(place)
        updates.setdefault(f"{module}.weight" if part else module, {})[part] = tensor
    if tied and {HEAD, EMBEDDING} & updates.keys() and EMBEDDING in tensors:
        tensors.setdefault(HEAD, tensors[EMBEDDING])
    for name, parts in updates.items():
        whole = parts.pop("", None)
        if whole is None and name not in tensors:
            raise UserError(f"{path} changes {name}, which its base does not have; {_CURE}")
        tensor = tensors[name] if whole is None else whole
        tensors[name] = _updated(path, name, tensor, parts, config) if parts else tensor
    return files._replace(tensors=tensors)


def _weights(directory: Path) -> Path:
    """The file with an adapter's tensors."""
    for name in _WEIGHTS:
        if (directory / name).is_file():
            return directory / name
    raise UserError(f"{directory} has an {CONFIG} and none of {', '.join(_WEIGHTS)}; add it")


def _split(name: str) -> tuple[str, str]:
    """Returns the module and the part of an update; of other tensors, the name and ""."""
    module, _, part = name.partition(".lora_")
    return (module, part.removesuffix(".weight")) if part else (name, "")


def _updated(
    path: Path, name: str, weight: Tensor, parts: Mapping[str, Tensor], config: LoraConfig
) -> Tensor:
    """The tensor that an update makes of a weight, by its parts A [rank, in] and B [out, rank]."""
    down, up = parts.get("A"), parts.get("B")
    if more := parts.keys() - {"A", "B"}:
        raise UserError(f"{path} has lora_{min(more)} of {name}, which is not supported; {_CURE}")
    if down is None or up is None or len(weight.shape) != 2:
        raise UserError(f"{path} lacks a part of the update of {name}; the file is incomplete")
    (out, size), rank = weight.shape, down.shape[0]
    if (down.shape, up.shape) != ((rank, size), (out, rank)):
        raise UserError(
            f"{path} updates {name} of shape {weight.shape} by {down.shape} and {up.shape}; pass "
            "the adapter's own base"
        )
    scale = config.scale(name.removesuffix(".weight"), rank)

    def read() -> np.ndarray:
        update = up.read().astype(np.float32) @ down.read().astype(np.float32)
        return weight.read().astype(np.float32) + scale * update

    return Tensor(weight.shape, np.dtype(np.float32), read)


def _refusal(what: str) -> UserError:
    return UserError(f"{CONFIG} has {what}, which is not supported for adapters; {_CURE}")
