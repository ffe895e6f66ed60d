"""Writes a target as a GGUF file, without tokenizer, for llama.cpp."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.tensor_files import open_tensors, read_json

# Names of the types in GGUF.
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def write_gguf(path: Path, target: Path, precision: str) -> None:
    """Writes the file: matrices in `precision`, vectors in float32.

    Args:
      path: the file.
      target: directory of a Qwen3 model in the Hugging Face layout.
      precision: float32, float16 or bfloat16.

    Raises:
      UserError: the target is no plain Qwen3 model.
    """
    gguf: Any = importlib.import_module("gguf")
    config = read_json(target / "config.json")
    rope = config.get("rope_parameters") or {}
    scaled = config.get("rope_scaling") or rope.get("rope_type", "default") != "default"
    if config.get("model_type") != "qwen3" or scaled or config.get("use_sliding_window"):
        raise UserError("its file is written here for plain Qwen3 models only")
    layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_theta") or rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    types = gguf.GGMLQuantizationType
    for name, tensor in open_tensors(target).tensors.items():
        if config.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        values = tensor.read().astype(np.float32)
        kind = types[_TYPES[precision] if values.ndim > 1 else "F32"]
        called = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(called, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
