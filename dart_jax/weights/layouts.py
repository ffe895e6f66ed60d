"""Maps parameters to the tensors of checkpoint files: one table per architecture.

The left side is a parameter's path, the right side the tensor's name; `{i}` is the layer, `{e}` the
expert. Files store kernels transposed ([out, in]) and each expert separately. The fused table
matches the modules of `transformers`, which can write this layout as well: all experts in one
tensor, and gate and up projections concatenated along its output axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.pure import abstract_params

AnyConfig = TargetConfig | DrafterConfig | Eagle3Config
ParamPath = tuple[str | int, ...]

_TARGET = {
    "embed_tokens": "model.embed_tokens.weight",
    "layers.{i}.input_layernorm.scale": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.self_attn.q_proj.kernel": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.self_attn.k_proj.kernel": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.self_attn.v_proj.kernel": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.self_attn.o_proj.kernel": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.self_attn.q_norm.scale": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.self_attn.k_norm.scale": "model.layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.post_attention_layernorm.scale": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.mlp.gate_proj.kernel": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.mlp.up_proj.kernel": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.mlp.down_proj.kernel": "model.layers.{i}.mlp.down_proj.weight",
    "norm.scale": "model.norm.weight",
    "lm_head.kernel": "lm_head.weight",
}
_QWEN3_MOE = _TARGET | {
    "layers.{i}.mlp.router.kernel": "model.layers.{i}.mlp.gate.weight",
    "layers.{i}.mlp.experts.gate_proj": "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    "layers.{i}.mlp.experts.up_proj": "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    "layers.{i}.mlp.experts.down_proj": "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
}
_MIXTRAL = _TARGET | {
    "layers.{i}.mlp.router.kernel": "model.layers.{i}.block_sparse_moe.gate.weight",
    "layers.{i}.mlp.experts.gate_proj": "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
    "layers.{i}.mlp.experts.up_proj": "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
    "layers.{i}.mlp.experts.down_proj": "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
}
_FUSED = _TARGET | {
    "layers.{i}.mlp.router.kernel": "model.layers.{i}.mlp.gate.weight",
    "layers.{i}.mlp.experts.gate_proj": "model.layers.{i}.mlp.experts.gate_up_proj",
    "layers.{i}.mlp.experts.up_proj": "model.layers.{i}.mlp.experts.gate_up_proj",
    "layers.{i}.mlp.experts.down_proj": "model.layers.{i}.mlp.experts.down_proj",
}
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

    def of(self, parameter: np.ndarray) -> np.ndarray:
        """The piece as a view of its parameter, with the axes of the stored tensor."""
        part = parameter if self.expert is None else parameter[self.expert]
        return part.swapaxes(-1, -2) if self.transposed else part


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

    def split(self, tensor: np.ndarray) -> Iterator[tuple[Piece, np.ndarray]]:
        """Yields each piece with its part of the stored tensor."""
        start = 0
        for piece in self.pieces:
            if len(self.pieces) == 1:
                yield piece, tensor
                return
            end = start + piece.shape[-2]
            yield piece, tensor[..., start:end, :]
            start = end


def layout(config: AnyConfig, stored: Collection[str] = ()) -> dict[str, Entry]:
    """Returns the entries of a file of this model, by tensor name.

    Args:
      config: the model's config.
      stored: names in the file to read, which determine whether its experts are fused.
    """
    table = _DRAFTER
    if isinstance(config, TargetConfig):
        fused = any(name.endswith(".mlp.experts.gate_up_proj") for name in stored)
        moe = (
            _FUSED
            if fused
            else {"mixtral": _MIXTRAL, "qwen3_moe": _QWEN3_MOE}.get(config.model_type)
        )
        table = moe or _TARGET
    pieces: dict[str, list[Piece]] = {}
    for path, leaf in leaves(abstract_params(config)):
        layer = next((key for key in path if isinstance(key, int)), None)
        name = table[".".join("{i}" if isinstance(key, int) else key for key in path)]
        transposed = path[-1] == "kernel" or "experts" in path
        shape = (*leaf.shape[:-2], leaf.shape[-1], leaf.shape[-2]) if transposed else leaf.shape
        for e in range(shape[0]) if "{e}" in name else (None,):
            piece = Piece(path, shape if e is None else shape[1:], e, transposed)
            pieces.setdefault(name.format(i=layer, e=e), []).append(piece)
    return {name: Entry(tuple(parts)) for name, parts in pieces.items()}


def leaves(params: Any) -> Iterator[tuple[ParamPath, Any]]:
    """Yields the leaves of nested parameters with their paths."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield tuple(key.key for key in path), leaf
