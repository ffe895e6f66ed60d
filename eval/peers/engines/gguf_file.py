"""Writes a target as a GGUF file in one precision, for llama.cpp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.gguf.tensors import gguf_files
from dart_jax.weights.tensor_files import open_tensors, read_json

_TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
}


def write_gguf(path: Path, target: Path, precision: str) -> None:
    """Writes the file: matrices in `precision`, vectors in float32.

    Args:
      path: the file.
      target: directory of the target, from `hub.resolve`: that of a GGUF file, whose other fields
        stay as they are, or of a Qwen3 model, written without its tokenizer.
      precision: float32, float16 or bfloat16.

    Raises:
      UserError: the target is another model, or a GGUF file in parts.
    """
    if files := gguf_files(target):
        if len(files) > 1:
            raise UserError("its file is written here from GGUF targets in one part only")
        reader = gguf.GGUFReader(files[0])
        writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        _copy_fields(reader, writer)
        tensors: Iterable[tuple[str, np.ndarray]] = (
            (each.name, gguf.quants.dequantize(each.data, each.tensor_type))
            for each in reader.tensors
        )
    else:
        writer, tensors = _qwen3(path, target)
    for name, values in tensors:
        kind = _TYPES[precision if values.ndim > 1 else "float32"]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def most_common_type(path: Path) -> str:
    """Returns the type of most matrices in a GGUF file."""
    tensors = gguf.GGUFReader(path).tensors
    types = Counter(each.tensor_type.name for each in tensors if len(each.shape) > 1)
    return types.most_common(1)[0][0]


def _copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copies all but what the writer writes itself and what says how weights were quantised."""
    own = ("general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if name not in own and not name.startswith("GGUF."):
            of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], of_items)


def _qwen3(path: Path, target: Path) -> tuple[gguf.GGUFWriter, Iterable[tuple[str, np.ndarray]]]:
    """Returns a writer that has the fields, and the tensors by their names in GGUF."""
    config = read_json(target / "config.json")
    rope = config.get("rope_parameters") or {}
    scaled = config.get("rope_scaling") or rope.get("rope_type", "default") != "default"
    if config.get("model_type") != "qwen3" or scaled or config.get("use_sliding_window"):
        raise UserError("its file is written here for GGUF and plain Qwen3 targets only")
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
    tensors = open_tensors(target).tensors
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)

    def name_of(name: str) -> str:
        return names.get_name(name, try_suffixes=(".weight",)) or name

    return writer, (
        (name_of(name), tensor.read().astype(np.float32)) for name, tensor in tensors.items()
    )
