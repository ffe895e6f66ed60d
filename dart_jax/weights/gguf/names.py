"""Tensors of a GGUF file by their names in the Hugging Face layout."""

from __future__ import annotations

import re

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.weights.formats.layouts import layout
from dart_jax.weights.gguf.config import ROPE_FACTORS
from dart_jax.weights.gguf.file import GgufFiles
from dart_jax.weights.gguf.tensors import Source, open_source, size_of

# Architectures whose files have the two halves of a head's queries and keys interleaved.
_INTERLEAVED = ("granite", "llama", "smollm3")
# Architectures whose files have the offset of the norms added to their scales.
_OFFSET_NORMS = ("gemma", "gemma2", "gemma3")
_EXPERT = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight$")
_EXPERT_PARTS = {
    **{"gate_proj": "gate", "up_proj": "up", "down_proj": "down"},
    **{"w1": "gate", "w3": "up", "w2": "down"},
}
_NAMED = 4  # tensors in a message


def sources(files: GgufFiles, config: TargetConfig) -> dict[str, Source]:
    """Finds the tensors of a target in its GGUF file, by their names in the layout; what belongs to
    no layer keeps its own name.

    Raises:
      UserError: a layer has a tensor that is not known: it would change the result.
    """
    import gguf

    architecture = files.metadata["general.architecture"]
    by_value = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_value[architecture], config.num_hidden_layers)
    left = {name: stored for name, stored in files.tensors.items() if name not in ROPE_FACTORS}
    used: dict[str, Source] = {}
    whole: set[str] = set()
    for name, entry in layout(config).items():
        if match := _EXPERT.match(name):
            layer, expert, part = match.groups()
            own = f"blk.{layer}.ffn_{_EXPERT_PARTS[part]}_exps.weight"
            if own in left:
                stored, shape = left[own], left[own].shape[1:]
                start = stored.offset + int(expert) * size_of(stored.kind, shape)
                used[name] = Source(stored._replace(offset=start, shape=shape), shape)
                whole.add(own)
            continue
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if own is None or own not in left:
            continue
        stored = left[own]
        count, offset = 0, 1.0 if architecture in _OFFSET_NORMS and "norm" in own else 0.0
        if architecture in _INTERLEAVED and ".attn_q." in own:
            count = config.num_attention_heads
        elif architecture in _INTERLEAVED and ".attn_k." in own:
            count = config.num_key_value_heads
        # One that is stored as a vector: the gate of a shared expert.
        shape = entry.shape if stored.shape == entry.shape[1:] else stored.shape
        used[name] = Source(stored, shape, count, offset)
        whole.add(own)
    others = {name: Source(s, s.shape) for name, s in left.items() if name not in whole}
    layers = [name for name in others if name.startswith("blk.")]
    if layers:
        raise UserError(
            f"{files.paths[0]} holds tensors that a model of architecture {architecture!r} does "
            f"not have here: {', '.join(layers[:_NAMED])}" + ", ..." * (len(layers) > _NAMED)
        )
    return used | others


def rope_factors(files: GgufFiles) -> dict[str, list[float]]:
    """Reads the divisors of RoPE's frequencies that the files hold."""
    return {
        name: open_source(files.paths, Source(stored, stored.shape)).read().astype(float).tolist()
        for name, stored in files.tensors.items()
        if name in ROPE_FACTORS
    }
