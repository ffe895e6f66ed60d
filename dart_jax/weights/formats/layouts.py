"""Names of parameters in checkpoint files.

They are the parameters' paths, except for the rules below. Files store kernels transposed ([out,
in]) and each expert separately. Parameters with the same name share a tensor: they are concatenated
along its output axis, as in files of Phi-3 and of the modules of `transformers`, which can write
all experts in one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import AnyDrafterConfig, BlockConfig
from dart_jax.models.networks.pure import abstract_params
from dart_jax.weights.formats import PAIR_SCORES

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

AnyConfig = TargetConfig | AnyDrafterConfig
ParamPath = tuple[str | int, ...]
# The name of the tensor of a parameter.
Names = Callable[[ParamPath], str]

_TABLES = ("embed_tokens", "prev", "next")  # parameters of no module
_TRANSPOSED = ("kernel", "gate_proj", "up_proj", "down_proj")  # the latter of all experts
# Parts of a shared tensor, in their order.
_ORDER = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
# Parts of a target's names -> what files have in their place; `{e}` is the expert.
_PHI3 = {
    **dict.fromkeys((".q_proj.", ".k_proj.", ".v_proj."), ".qkv_proj."),
    **dict.fromkeys((".mlp.gate_proj.", ".mlp.up_proj."), ".mlp.gate_up_proj."),
}
_QWEN_MOE = {
    ".mlp.router.": ".mlp.gate.",
    ".experts.gate_proj": ".experts.{e}.gate_proj.weight",
    ".experts.up_proj": ".experts.{e}.up_proj.weight",
    ".experts.down_proj": ".experts.{e}.down_proj.weight",
}
_MIXTRAL = {
    ".mlp.router.": ".block_sparse_moe.gate.",
    ".mlp.experts.gate_proj": ".block_sparse_moe.experts.{e}.w1.weight",
    ".mlp.experts.up_proj": ".block_sparse_moe.experts.{e}.w3.weight",
    ".mlp.experts.down_proj": ".block_sparse_moe.experts.{e}.w2.weight",
}
_FUSED_EXPERTS = {
    ".mlp.router.": ".mlp.gate.",
    **dict.fromkeys((".experts.gate_proj", ".experts.up_proj"), ".experts.gate_up_proj"),
}
# Names of a block drafter's parameters -> what files have in their place.
_MARKOV = {
    "pairs.prev.weight": "markov_head.markov_w1.weight",
    "pairs.next.weight": "markov_head.markov_w2.weight",
    "pairs.gate.": "markov_head.gate_proj.",
    "confidence.": "confidence_head.proj.",
}
_SELECTOR = {
    "pairs.prev.weight": "candidate_selector.predecessor_codebook",
    "pairs.next.weight": "candidate_selector.successor_codebook",
    "pairs.gate.": "candidate_selector.hidden_projection.",
}
# Modules of drafters outside of their layer.
_OUTSIDE = ("embed_tokens", "fc", "fc_norm", "input_norm", "lm_head", "norm")
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
    *("model.multi_modal_projector.", "model.vision_tower.", "model.visual."),
    *("multi_modal_projector.", "vision_tower.", "visual."),
)


class Piece(NamedTuple):
    """A parameter, or one expert's part of it, that is filled from a stored tensor.

    Attributes:
      path: the parameter's path.
      shape: the shape of the piece as stored.
      expert: the index of the expert, or None if the piece is the whole parameter.
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
    """Returns the entries of the files of this model, by tensor name.

    Args:
      config: the model's config.
      stored: names in the files to read, which determine whether its experts are fused.
    """
    name = _NAMES.get(type(config), _authors_names)(config, stored)
    return _entries(name, abstract_params(config))


def _entries(name_of: Names, params: Any) -> dict[str, Entry]:
    """Returns the entries of a file that holds these parameters."""
    pieces: dict[str, list[Piece]] = {}
    for path, leaf in leaves(params):
        name, transposed = name_of(path), path[-1] in _TRANSPOSED
        shape = (*leaf.shape[:-2], leaf.shape[-1], leaf.shape[-2]) if transposed else leaf.shape
        for e in range(shape[0]) if "{e}" in name else (None,):
            piece = Piece(path, shape if e is None else shape[1:], e, transposed)
            pieces.setdefault(name.format(e=e), []).append(piece)
    for parts in filter(lambda parts: len(parts) > 1, pieces.values()):
        parts.sort(key=lambda piece: [part in piece.path for part in _ORDER], reverse=True)
    return {name: Entry(tuple(parts)) for name, parts in pieces.items()}


def _name(path: ParamPath) -> str:
    """Returns a path as a name, with the last part that PyTorch's modules have."""
    *modules, last = map(str, path)
    last = "weight" if last in ("kernel", "scale") else last
    return ".".join([*modules, f"{last}.weight" if last in _TABLES else last])


def _target_names(config: TargetConfig, stored: Collection[str]) -> Names:
    rules = _PHI3 if config.architecture.fused else {}
    if config.moe is not None:
        rules = _MIXTRAL if config.model_type == "mixtral" else _QWEN_MOE
        if any(name.endswith(".mlp.experts.gate_up_proj") for name in stored):
            rules = _FUSED_EXPERTS

    def name_of(path: ParamPath) -> str:
        name = _name(path)
        for part, replacement in rules.items():
            name = name.replace(part, replacement)
        return name if name == HEAD else f"model.{name}"

    return name_of


def _block_names(config: BlockConfig, stored: Collection[str]) -> Names:
    rules = _SELECTOR if config.selector_top_k is not None else _MARKOV

    def name_of(path: ParamPath) -> str:
        name = _name(path)
        for part, replacement in rules.items():
            if name.startswith(part):
                return replacement + name.removeprefix(part)
        return name

    return name_of


def _authors_names(config: AnyConfig, stored: Collection[str]) -> Names:
    """DART's and EAGLE-3's; layers after the first exist only in dart_jax."""

    def name_of(path: ParamPath) -> str:
        if path[0] == "pairs":
            return f"{PAIR_SCORES}.{_name(path[1:])}"
        name = re.sub(r"(^|\.)([qkvo]_(?:proj|norm)\.)", r"\1self_attn.\2", _name(path))
        return name if path[0] in _OUTSIDE else f"midlayer.{name}"

    return name_of


# How the tensors of a model are named, by its config.
_NAMES: dict[type, Callable[[Any, Collection[str]], Names]] = {
    TargetConfig: _target_names,
    BlockConfig: _block_names,
}


def text_tensor(name: str) -> str | None:
    """Returns the name that a tensor has in a language model of text alone, or None if it belongs
    to another part of a vision-language model."""
    if name.startswith(_OTHER_PARTS):
        return None
    for prefix, replacement in _TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def leaves(params: Any) -> Iterator[tuple[ParamPath, Any]]:
    """Yields the leaves of nested parameters with their paths."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield tuple(key.key for key in path), leaf
