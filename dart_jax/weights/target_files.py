"""The tensors of a target by the names of its layout, whatever class of model wrote them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dart_jax.errors import UserError, warn
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_json.drafter_formats import is_drafter
from dart_jax.weights import adapter
from dart_jax.weights.layouts import EMBEDDING, HEAD, layout, text_tensor
from dart_jax.weights.quantized import Quantization, dequantized, read_quantization
from dart_jax.weights.safetensors_file import Tensor
from dart_jax.weights.tensor_files import TensorFiles, open_tensors, read_json

# Buffers of old files, which the config determines.
BUFFERS = re.compile(r"(^|\.)rotary_emb\.\w+$|\.attn\.(masked_)?bias$|(^|\.)position_ids$")
# Names of parts that predict the next token. Others are heads for further tokens, for classes and
# for values, or states of an optimiser: those who load a language model leave them out, too.
_OWN_PARTS = re.compile(r"(model\.(?!mtp\.)|lm_head\.)")
_AT_ONCE = 1 << 22  # numbers compared at a time


def target_config(directory: Path) -> tuple[TargetConfig, Quantization | None]:
    """Reads a target's config, and how its files are quantised.

    Raises:
      UserError: it is missing, not supported, or a drafter's.

    Warns:
      InputWarning: a GGUF file has fields that nothing reads.
    """
    json = read_json(directory / "config.json")
    if is_drafter(json):
        raise UserError(f"{directory} is a drafter; pass it as the drafter of its target")
    if names := json.get("gguf_fields_not_used"):
        warn(f"the GGUF file has fields that are not used: {', '.join(names)}")
    return TargetConfig.from_json(json), read_quantization(json)


def open_target(directory: Path) -> tuple[TargetConfig, TensorFiles]:
    """Opens a target in the Hugging Face layout.

    Returns:
      The config, with an untied head if the files hold one that is not the embedding, and the
      tensors: dequantised, with the adapter in the directory merged into them, and without those
      that are not used.

    Raises:
      UserError: something is missing, damaged or not supported.

    Warns:
      InputWarning: tensors are not used, or the head is not tied although the config says so.
    """
    config, quantization = target_config(directory)
    files = open_tensors(directory)
    if quantization is not None:
        of_text = {n: t for n, t in files.tensors.items() if text_tensor(n) is not None}
        files = dequantized(files._replace(tensors=of_text), quantization)
    files = _text_part(files, config)
    files = adapter.merged(files, directory, tied=config.tie_word_embeddings)
    if config.tie_word_embeddings:
        config = _tie_head(files, config)
    elif HEAD not in files.tensors.keys() | files.lost:
        files.lost.add(HEAD)
        cure = "if the embedding is the head, set tie_word_embeddings to true in config.json"
        files.problems.append(f"missing {HEAD} ({cure})")
    _drop_unused(files, config)
    return config, files


def _text_part(files: TensorFiles, config: TargetConfig) -> TensorFiles:
    """Leaves out what belongs to the other parts of a vision-language model, and turns experts
    around that it stores as [.., in, out]; transformers, too, recognises them by their shape."""
    renamed = {text_tensor(name): tensor for name, tensor in files.tensors.items()}
    tensors = {name: tensor for name, tensor in renamed.items() if name is not None}
    lost = {name for name in map(text_tensor, files.lost) if name is not None}
    if tensors.keys() != files.tensors.keys() and config.moe is not None:
        for name, entry in layout(config, tensors).items():
            tensor = tensors.get(name)
            transposed = (*entry.shape[:-2], entry.shape[-1], *entry.shape[-2:-1])
            if tensor is not None and tensor.shape == transposed != entry.shape:
                tensors[name] = tensor.transposed()
    return files._replace(tensors=tensors, lost=lost)


def _tie_head(files: TensorFiles, config: TargetConfig) -> TargetConfig:
    """Removes the second copy of a tied head, under either name.

    Returns the config: without a tied head if the files hold another one, as after training head or
    embedding alone.
    """
    tensors = files.tensors
    if HEAD not in tensors:
        return config
    if EMBEDDING not in tensors:
        if EMBEDDING not in files.lost:
            tensors[EMBEDDING] = tensors.pop(HEAD)
        return config
    if _equal(tensors[EMBEDDING], tensors[HEAD]):
        del tensors[HEAD]
        return config
    warn(
        f"{files.path} holds a head ({HEAD}) that is not the embedding; both are used, although "
        "config.json ties them: set tie_word_embeddings to false there"
    )
    return dataclasses.replace(config, tie_word_embeddings=False)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Returns whether two matrices hold the same numbers; reads both."""
    if a is b or a.shape != b.shape:
        return a is b
    if a.read_part is None or b.read_part is None:
        return _same_numbers(a.read(), b.read())
    rows, width = a.shape
    step = max(1, _AT_ONCE // width)
    return all(
        _same_numbers(a.read_part(region), b.read_part(region))
        for top in range(0, rows, step)
        if (region := (slice(top, min(top + step, rows)), slice(0, width)))
    )


def _same_numbers(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype:
        a, b = a.astype(np.float32), b.astype(np.float32)
    return a.tobytes() == b.tobytes()


def _drop_unused(files: TensorFiles, config: TargetConfig) -> None:
    """Removes tensors that the model's own programs do not use either; those that they would use
    but the config does not name stay, to be refused."""
    tensors, entries = files.tensors, layout(config, files.tensors)
    unused = []
    for name in [name for name in tensors if name not in entries]:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        beyond = layer is not None and int(layer[1]) >= config.num_hidden_layers
        if beyond or not _OWN_PARTS.match(name):
            unused.append(layer[0] if layer else name.partition(".")[0] + ".")
            del tensors[name]
        elif BUFFERS.search(name) or (name.endswith(".bias") and not tensors[name].read().any()):
            del tensors[name]
    if unused:
        warn(
            f"{files.path} holds tensors that are not used, nor by transformers: {_counts(unused)}"
        )


def _counts(names: Iterable[str]) -> str:
    """Each distinct name with how often it occurs."""
    names = list(names)
    return ", ".join(f"{name}* ({names.count(name)})" for name in dict.fromkeys(names))
