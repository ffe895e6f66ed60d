"""Writes targets as GGUF files, as llama.cpp's converter does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from blocks import random_blocks
from safetensors.numpy import load_file

from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import init_params
from dart_jax.weights.checkpoint import save_target

ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
# Fields of config.json -> those of an architecture.
FIELDS = {
    "attention_multiplier": "attention.scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "final_logit_softcapping": "final_logit_softcapping",
    "head_dim": "attention.key_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "logits_scaling": "logit_scale",
    "max_position_embeddings": "context_length",
    "moe_intermediate_size": "expert_feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "num_local_experts": "expert_count",
    "residual_multiplier": "residual_scale",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
}
# Parameters of RoPE's scaling -> fields.
SCALING = {
    "attention_factor": "attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "rope_type": "type",
}
_EXPERT = re.compile(r"(model\.layers\.(\d+)\.)\w+\.experts\.(\d+)\.(\w+)\.weight$")
_PARTS = {
    **{"gate_proj": "gate", "up_proj": "up", "down_proj": "down"},
    **{"w1": "gate", "w3": "up", "w2": "down"},
}


def write(
    path: Path,
    directory: Path,
    *,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    shards: int = 0,
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Converts a checkpoint in the Hugging Face layout.

    Args:
      path: the file to write.
      directory: with config.json and model.safetensors.
      kinds: regular expressions for names -> the type of these matrices; others are float32. With
        types that only llama.cpp can write, matrices have random blocks.
      tokenizer: its metadata; tokens without meaning if it is None.
      shards: into how many tensors' files it is split; 0 for one file.
      extra: more metadata; None leaves out a field.
      tensors: more tensors, by their names in the file.

    Returns:
      The path of the (first) file.
    """
    config = json.loads((directory / "config.json").read_text())
    kind = config["model_type"]
    arch = ARCHITECTURES.get(kind, kind)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=shards)
    for name, field in FIELDS.items():
        value = config.get(name)
        if value is not None:
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{arch}.{field}", value)
    head = config["head_dim"]
    writer.add_value_length(head)
    writer.add_rope_dimension_count(int(head * config.get("partial_rotary_factor", 1)))
    metadata = {**(tokenizer or no_meaning(config["vocab_size"]))}
    scaling = dict(config.get("rope_scaling") or {})
    factors = {
        f"rope_factors_{name}.weight": np.array(scaling[f"{name}_factor"], np.float32)
        for name in ("short", "long")
        if f"{name}_factor" in scaling
    }
    if factors:
        del scaling["rope_type"], scaling["factor"]
    for name in SCALING.keys() & scaling.keys():
        metadata[f"{arch}.rope.scaling.{SCALING[name]}"] = scaling[name]
    if arch == "olmo2" and "layer_types" in config:
        windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
        metadata[f"{arch}.attention.sliding_window_pattern"] = windowed
    for name, value in {**metadata, **(extra or {})}.items():
        if value is None:
            writer.kv_data[0].pop(name, None)
        else:
            _add(writer, name, value)
    stored = _converted(load_file(directory / "model.safetensors"), config, arch)
    for name, tensor in {**stored, **factors, **(tensors or {})}.items():
        pattern = next((p for p in kinds or () if tensor.ndim > 1 and re.search(p, name)), None)
        if pattern is None:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, _quantized(tensor, kinds[pattern]), raw_dtype=kinds[pattern])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


def _quantized(tensor: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """A matrix in blocks; of a type that the package cannot write, other weights."""
    try:
        return gguf.quantize(tensor, kind)
    except NotImplementedError:
        return random_blocks(np.random.default_rng(tensor.size), kind.name, *tensor.shape)


def tiny_gguf(directory: Path, name: str, **options: Any) -> Path:
    """Writes a tiny target into a folder of its own, as `write` with the same options."""
    config = TargetConfig(61, 32, 64, 3, 4, 2, 8, model_type="llama")
    save_target(directory / "hf", config, init_params(config, 0))
    (directory / name).mkdir()
    return write(directory / name / f"{name}.gguf", directory / "hf", **options)


def no_meaning(size: int) -> dict[str, Any]:
    """A tokenizer of so many tokens."""
    tokens = ["a", "b", "ab", *(f"t{n}" for n in range(3, size))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[1] * (size - 1), 2],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 1,
    }


def metadata_of(backend: tokenizers.Tokenizer, pre: str | None = None) -> dict[str, Any]:
    """The metadata of a tokenizer: of bytes, split by the rule `pre`, or SentencePiece's, whose
    merges become scores."""
    model = json.loads(backend.to_str())["model"]
    vocab = backend.get_vocab()
    added = {t.content: t for t in backend.get_added_tokens_decoder().values()}
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [3 if t in added and added[t].special else 4 if t in added else 1 for t in tokens]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    if pre is not None:
        merges = [" ".join(pair) for pair in model["merges"]]
        metadata |= {"tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": merges}
        return {"tokenizer.ggml.model": "gpt2", **metadata}
    for n, token in enumerate(tokens):
        if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            types[n] = 6
    types[vocab[model["unk_token"]]] = 2
    best = {"".join(pair): -float(n) for n, pair in reversed([*enumerate(model["merges"])])}
    scores = [best.get(token, -1e4) for token in tokens]
    metadata["tokenizer.ggml.scores"] = scores
    metadata["tokenizer.ggml.bos_token_id"] = vocab["<s>"]
    return {"tokenizer.ggml.model": "llama", **metadata}


def _converted(
    tensors: Mapping[str, np.ndarray], config: Mapping[str, Any], arch: str
) -> dict[str, np.ndarray]:
    """The tensors by their names in the file: heads interleaved, offsets added, experts stacked."""
    by_value = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_value[arch], config["num_hidden_layers"])
    out: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in tensors.items():
        if match := _EXPERT.match(name):
            _, layer, expert, part = match.groups()
            own = f"blk.{layer}.ffn_{_PARTS[part]}_exps.weight"
            experts.setdefault(own, {})[int(expert)] = tensor
            continue
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        if arch in ("llama", "granite", "smollm3") and re.search(r"attn_[qk]\.", own):
            heads = config["num_attention_heads" if "_q." in own else "num_key_value_heads"]
            halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        if arch.startswith("gemma") and "norm" in own:
            tensor = tensor + np.float32(1)
        if "ffn_gate_inp_shexp" in own:
            tensor = tensor[0]
        out[own] = np.ascontiguousarray(tensor)
    stacked = {own: np.stack([parts[e] for e in sorted(parts)]) for own, parts in experts.items()}
    return out | stacked


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    """Adds a field of the type that its value has."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    kinds |= {str: writer.add_string, list: writer.add_array}
    kinds[type(value)](name, value)
