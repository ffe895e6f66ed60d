"""Maps parameters to the tensors of checkpoint files: one table per architecture.

The left side is a parameter's path, the right side the tensor's name; `{i}` is the layer, `{e}` the
expert. Files store kernels transposed ([out, in]) and each expert separately. Parameters with the
same name share a tensor: they are concatenated along its output axis, in the order of the table.
The fused tables are of Phi-3's files, and of the modules of `transformers`, which can write all
experts in one tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.pure import Params, abstract_params

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

AnyConfig = TargetConfig | DrafterConfig | Eagle3Config
ParamPath = tuple[str | int, ...]


def _in_layers(table: dict[str, str]) -> dict[str, str]:
    """Completes the paths and names of a layer."""
    return {f"layers.{{i}}.{path}": f"model.layers.{{i}}.{name}" for path, name in table.items()}


_TARGET = {
    "embed_tokens": EMBEDDING,
    **_in_layers(
        {
            "input_layernorm.scale": "input_layernorm.weight",
            "self_attn.q_proj.kernel": "self_attn.q_proj.weight",
            "self_attn.k_proj.kernel": "self_attn.k_proj.weight",
            "self_attn.v_proj.kernel": "self_attn.v_proj.weight",
            "self_attn.o_proj.kernel": "self_attn.o_proj.weight",
            "self_attn.q_proj.bias": "self_attn.q_proj.bias",
            "self_attn.k_proj.bias": "self_attn.k_proj.bias",
            "self_attn.v_proj.bias": "self_attn.v_proj.bias",
            "self_attn.o_proj.bias": "self_attn.o_proj.bias",
            "self_attn.q_norm.scale": "self_attn.q_norm.weight",
            "self_attn.k_norm.scale": "self_attn.k_norm.weight",
            "post_attention_layernorm.scale": "post_attention_layernorm.weight",
            "pre_feedforward_layernorm.scale": "pre_feedforward_layernorm.weight",
            "post_feedforward_layernorm.scale": "post_feedforward_layernorm.weight",
            "mlp.gate_proj.kernel": "mlp.gate_proj.weight",
            "mlp.up_proj.kernel": "mlp.up_proj.weight",
            "mlp.down_proj.kernel": "mlp.down_proj.weight",
            "mlp.gate_proj.bias": "mlp.gate_proj.bias",
            "mlp.up_proj.bias": "mlp.up_proj.bias",
            "mlp.down_proj.bias": "mlp.down_proj.bias",
        }
    ),
    "norm.scale": "model.norm.weight",
    "lm_head.kernel": HEAD,
}
_PHI3 = _TARGET | _in_layers(
    {
        "self_attn.q_proj.kernel": "self_attn.qkv_proj.weight",
        "self_attn.k_proj.kernel": "self_attn.qkv_proj.weight",
        "self_attn.v_proj.kernel": "self_attn.qkv_proj.weight",
        "mlp.gate_proj.kernel": "mlp.gate_up_proj.weight",
        "mlp.up_proj.kernel": "mlp.gate_up_proj.weight",
    }
)
_ROUTER = _in_layers(
    {
        "mlp.router.kernel": "mlp.gate.weight",
        "mlp.shared_expert_gate.kernel": "mlp.shared_expert_gate.weight",
        "mlp.shared_expert.gate_proj.kernel": "mlp.shared_expert.gate_proj.weight",
        "mlp.shared_expert.up_proj.kernel": "mlp.shared_expert.up_proj.weight",
        "mlp.shared_expert.down_proj.kernel": "mlp.shared_expert.down_proj.weight",
    }
)
_QWEN_MOE = {
    **_TARGET,
    **_ROUTER,
    **_in_layers(
        {
            "mlp.experts.gate_proj": "mlp.experts.{e}.gate_proj.weight",
            "mlp.experts.up_proj": "mlp.experts.{e}.up_proj.weight",
            "mlp.experts.down_proj": "mlp.experts.{e}.down_proj.weight",
        }
    ),
}
_MIXTRAL = _TARGET | _in_layers(
    {
        "mlp.router.kernel": "block_sparse_moe.gate.weight",
        "mlp.experts.gate_proj": "block_sparse_moe.experts.{e}.w1.weight",
        "mlp.experts.up_proj": "block_sparse_moe.experts.{e}.w3.weight",
        "mlp.experts.down_proj": "block_sparse_moe.experts.{e}.w2.weight",
    }
)
_FUSED_EXPERTS = {
    **_TARGET,
    **_ROUTER,
    **_in_layers(
        {
            "mlp.experts.gate_proj": "mlp.experts.gate_up_proj",
            "mlp.experts.up_proj": "mlp.experts.gate_up_proj",
            "mlp.experts.down_proj": "mlp.experts.down_proj",
        }
    ),
}
# Beginnings of names in files of other classes -> in those of the language model: the text part of
# vision-language models, older and newer, and models that were saved without a head.
_TEXT_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "language_model.": "model.",
    "model.model.": "model.",
    "model.lm_head.": "lm_head.",
    "embed_tokens.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "norm.": "model.norm.",
}
_OTHER_PARTS = (
    "model.multi_modal_projector.",
    "model.vision_tower.",
    "model.visual.",
    "multi_modal_projector.",
    "vision_tower.",
    "visual.",
)
_DRAFTER = {
    "fc.kernel": "fc.weight",
    "mask_rep": "midlayer.mask_rep",
    "hidden_norm.scale": "midlayer.hidden_norm.weight",
    "input_layernorm.scale": "midlayer.input_layernorm.weight",
    "q_proj.kernel": "midlayer.self_attn.q_proj.weight",
    "k_proj.kernel": "midlayer.self_attn.k_proj.weight",
    "v_proj.kernel": "midlayer.self_attn.v_proj.weight",
    "o_proj.kernel": "midlayer.self_attn.o_proj.weight",
    "post_attention_layernorm.scale": "midlayer.post_attention_layernorm.weight",
    "mlp.gate_proj.kernel": "midlayer.mlp.gate_proj.weight",
    "mlp.up_proj.kernel": "midlayer.mlp.up_proj.weight",
    "mlp.down_proj.kernel": "midlayer.mlp.down_proj.weight",
    "norm.scale": "norm.weight",
    "lm_head.kernel": "lm_head.weight",
    "embed_tokens": "embed_tokens.weight",
    # Only EAGLE-3 drafters of newer kinds have these norms.
    "input_norm.scale": "input_norm.weight",
    "fc_norm.{i}.scale": "fc_norm.{i}.weight",
    "q_norm.scale": "midlayer.self_attn.q_norm.weight",
    "k_norm.scale": "midlayer.self_attn.k_norm.weight",
    # Layers after the first exist only in dart_jax, not in the reference.
    "layers.{i}.input_layernorm.scale": "layers.{i}.input_layernorm.weight",
    "layers.{i}.q_proj.kernel": "layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k_proj.kernel": "layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v_proj.kernel": "layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o_proj.kernel": "layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.post_attention_layernorm.scale": "layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.mlp.gate_proj.kernel": "layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.mlp.up_proj.kernel": "layers.{i}.mlp.up_proj.weight",
    "layers.{i}.mlp.down_proj.kernel": "layers.{i}.mlp.down_proj.weight",
}
# In a file of their own, which the reference does not read.
_PAIR_SCORES = {
    "prev": "prev.weight",
    "next": "next.weight",
    "gate.kernel": "gate.weight",
}


class Piece(NamedTuple):
    """A parameter, or one expert's part of it, that is filled from a stored tensor.

    Attributes:
      path: the parameter's path.
      shape: the shape of the piece as stored.
      expert: the index of the expert; None if the piece is the whole parameter.
      transposed: whether the last two axes are swapped.
    """

    path: ParamPath
    shape: tuple[int, ...]
    expert: int | None
    transposed: bool


class Entry(NamedTuple):
    """A stored tensor: its pieces are concatenated along the second-to-last axis."""

    pieces: tuple[Piece, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored tensor."""
        first = self.pieces[0].shape
        if len(self.pieces) == 1:
            return first
        return (*first[:-2], sum(piece.shape[-2] for piece in self.pieces), first[-1])

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the stored tensor, given the pieces with its axes."""
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)

    def regions(self) -> Iterator[tuple[Piece, tuple[slice, ...]]]:
        """Yields each piece with the region of the stored tensor that it fills."""
        start = 0
        for piece in self.pieces:
            region = [slice(0, size) for size in piece.shape]
            if len(self.pieces) > 1:
                region[-2] = slice(start, start + piece.shape[-2])
                start += piece.shape[-2]
            yield piece, tuple(region)


def layout(config: AnyConfig, stored: Collection[str] = ()) -> dict[str, Entry]:
    """Returns the entries of a file of this model, without pair scores, by tensor name.

    Args:
      config: the model's config.
      stored: names in the file to read, which determine whether its experts are fused.
    """
    table = _DRAFTER
    if isinstance(config, TargetConfig):
        table = _PHI3 if config.architecture.fused else _TARGET
        if config.moe is not None:
            table = _MIXTRAL if config.model_type == "mixtral" else _QWEN_MOE
            if any(name.endswith(".mlp.experts.gate_up_proj") for name in stored):
                table = _FUSED_EXPERTS
    return _entries(table, own_params(abstract_params(config)))


def pair_layout(config: DrafterConfig) -> dict[str, Entry]:
    """Returns the entries of the file of a drafter's pair scores, by tensor name; paths are those
    within the pair scores."""
    return _entries(_PAIR_SCORES, abstract_params(config)["pairs"])


def own_params(params: Params) -> Params:
    """Returns a model's parameters without its pair scores."""
    return {name: value for name, value in params.items() if name != "pairs"}


def _entries(table: dict[str, str], params: Params) -> dict[str, Entry]:
    """The entries of a file that holds these parameters."""
    order = list(table).index
    pieces: dict[str, list[Piece]] = {}
    for path, leaf in leaves(params):
        layer = next((key for key in path if isinstance(key, int)), None)
        name = table[_key(path)]
        transposed = path[-1] == "kernel" or "experts" in path
        shape = (*leaf.shape[:-2], leaf.shape[-1], leaf.shape[-2]) if transposed else leaf.shape
        for e in range(shape[0]) if "{e}" in name else (None,):
            piece = Piece(path, shape if e is None else shape[1:], e, transposed)
            pieces.setdefault(name.format(i=layer, e=e), []).append(piece)
    for parts in pieces.values():
        parts.sort(key=lambda piece: order(_key(piece.path)))
    return {name: Entry(tuple(parts)) for name, parts in pieces.items()}


def text_tensor(name: str) -> str | None:
    """Returns the name that a tensor has in a language model of text alone; None if it belongs to
    another part of a vision-language model."""
    if name.startswith(_OTHER_PARTS):
        return None
    for prefix, replacement in _TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _key(path: ParamPath) -> str:
    """A parameter's path as in the tables."""
    return ".".join("{i}" if isinstance(key, int) else key for key in path)


def leaves(params: Any) -> Iterator[tuple[ParamPath, Any]]:
    """Yields the leaves of nested parameters with their paths."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield tuple(key.key for key in path), leaf
