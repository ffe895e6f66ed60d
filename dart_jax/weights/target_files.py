"""Tensors of a target by the names of its layout, for files of any class of model."""

from __future__ import annotations

import collections
import dataclasses
import re
from pathlib import Path

import numpy as np

from dart_jax.errors import UserError, warn
from dart_jax.files import read_json
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_json.drafter_formats import is_drafter
from dart_jax.weights.formats.layouts import EMBEDDING, HEAD, layout, text_tensor
from dart_jax.weights.gguf.config import NOTES
from dart_jax.weights.tensor_files import ADAPTER, TensorFiles, open_tensors

# Fields that say how weights are quantised; the second in old files, the last in MLX's.
_QUANTIZATION = ("quantization_config", "compression_config", "quantization")
# Buffers of old files, which the config determines.
BUFFERS = re.compile(r"(^|\.)rotary_emb\.\w+$|\.attn\.(masked_)?bias$|(^|\.)position_ids$")
# Names of parts that predict the next token. Others are heads for further tokens, for classes and
# for values, or states of an optimiser: those who load a language model leave them out, too.
_OWN_PARTS = re.compile(r"(model\.(?!mtp\.)|lm_head\.)")


def read_target_config(directory: Path) -> TargetConfig:
    """Reads the config of a Hugging Face directory.

    Raises:
      UserError: it is missing, not supported, or a drafter's or an adapter's.

    Warns:
      InputWarning: a GGUF file has fields that nothing reads, or lacks one.
    """
    if (directory / ADAPTER).is_file():
        raise UserError(
            f"{directory} holds an adapter ({ADAPTER}), which is not read: merge it into its base "
            "with PEFT (merge_and_unload, save_pretrained) and pass the result"
        )
    json = read_json(directory / "config.json")
    if is_drafter(json):
        raise UserError(f"{directory} is a drafter; pass it as the drafter of its target")
    inner = json.get("text_config")
    for fields in (json, inner if isinstance(inner, dict) else {}):
        for name in _QUANTIZATION:
            if method := fields.get(name):
                method = method.get("quant_method", method) if isinstance(method, dict) else method
                raise UserError(
                    f"config.json has {name}={method!r}, and quantised weights are read from GGUF "
                    "files only; pass one of this model, or the unquantised checkpoint "
                    "(weights='int8' rounds it when it is loaded), or remove the field if "
                    "the files hold floats"
                )
    for note in json.get(NOTES) or ():
        warn(note)
    return TargetConfig.from_json(json)


def open_target(directory: Path) -> tuple[TargetConfig, TensorFiles]:
    """Opens a target in the Hugging Face layout.

    Returns:
      The config, with an untied head if the files hold one that is not the embedding, and the
      tensors, without those that are not used.

    Raises:
      UserError: something is missing, damaged or not supported.

    Warns:
      InputWarning: tensors are not used, or the head is not tied although the config says so.
    """
    config = read_target_config(directory)
    files = _text_part(open_tensors(directory), config)
    if config.tie_word_embeddings:
        config = _tie_head(files, config)
    _drop_unused(files, config)
    return config, files


def _text_part(files: TensorFiles, config: TargetConfig) -> TensorFiles:
    """Leaves out what belongs to the other parts of a vision-language model, and turns experts
    around that it stores as [.., in, out]; transformers, too, recognises them by their shape."""
    renamed = {text_tensor(name): tensor for name, tensor in files.tensors.items()}
    tensors = {name: tensor for name, tensor in renamed.items() if name is not None}
    if tensors.keys() != files.tensors.keys() and config.moe is not None:
        for name, entry in layout(config, tensors).items():
            tensor = tensors.get(name)
            if tensor is not None and tensor.shape != entry.shape:
                turned = tensor.transposed()
                tensors[name] = turned if turned.shape == entry.shape else tensor
    return files._replace(tensors=tensors)


def _tie_head(files: TensorFiles, config: TargetConfig) -> TargetConfig:
    """Removes the second copy of a tied head, under either name. Returns the config: without a tied
    head if the files hold another one, as after training head or embedding alone."""
    tensors = files.tensors
    if HEAD not in tensors:
        return config
    if EMBEDDING not in tensors:
        tensors[EMBEDDING] = tensors.pop(HEAD)
        return config
    if np.array_equal(tensors[EMBEDDING].read(), tensors[HEAD].read()):
        del tensors[HEAD]
        return config
    warn(
        f"{files.path} holds a head ({HEAD}) that is not the embedding; both are used, although "
        "config.json ties them: set tie_word_embeddings to false there"
    )
    return dataclasses.replace(config, tie_word_embeddings=False)


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
        counts = collections.Counter(unused).items()
        names = ", ".join(f"{name}* ({count})" for name, count in counts)
        warn(f"{files.path} holds tensors that are not used, nor by transformers: {names}")
