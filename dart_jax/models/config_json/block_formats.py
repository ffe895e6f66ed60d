"""The `config.json` of block drafters: z-lab's DFlash and DFlash2, JetSpec's, DeepSpec's DSpark,
SpecForge's and speculators' spellings of them.

A format is told by its own fields; what it names is read as fields of `BlockConfig`, which writes
the same layout. Unknown fields are refused: they may change the computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dart_jax.errors import UserError
from dart_jax.models.config_json.drafter_fields import IGNORED
from dart_jax.models.config_json.drafter_formats import (
    SPECULATORS_VOCABULARY,
    classes,
    speculators_layer,
)
from dart_jax.models.config_json.fields import (
    FULL,
    SLIDING,
    are_layers,
    is_number,
    layer_types,
    refuse,
)

# Where the fields are and how files spell them: z-lab's, in `dflash_config`; DeepSpec's, at the top
# level; SpecForge's DSpark, in `dflash_config`; speculators', with the layers' in an object.
BlockLayout = Literal["dflash", "deepspec", "specforge", "speculators"]

_CLASSES: dict[str, BlockLayout] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash",
    "Qwen3DSparkModel": "deepspec",
    "DSparkDraftModel": "specforge",
}
SPECULATORS = {name.lower(): f"{name}DraftModel" for name in ("DFlash", "DSpark", "DFlash2")}
GATES = {"vanilla": "none", "gated": "sigmoid"}
SCALES = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
# What is read in `dflash_config` and at the top level alike; in the former alone, in the latter.
_ANYWHERE = """
    block_size target_layer_ids mask_token_id num_target_layers target_hidden_size
    markov_rank markov_head_type enable_confidence_head confidence_head_with_markov
    conv_kernel_size conv_group_size selector_rank selector_top_k
    input_embedding_scale output_multiplier final_logit_softcapping
"""
_NESTED = {
    *f"{_ANYWHERE} projector_type causal causal_head attention_mode confidence_head_alpha".split()
}
_TOP = f"""
    {_ANYWHERE} dflash_config is_causal num_anchors transformer_layer_config draft_vocab_size
    sample_from_anchor aux_hidden_state_layer_ids sliding_window_non_causal
    vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim
    rms_norm_eps max_position_embeddings hidden_act attention_bias mlp_bias quantization_config
"""
_KNOWN = IGNORED | {*_TOP.split()}
_FLAGS = """
    causal causal_head is_causal sample_from_anchor sliding_window_non_causal use_sliding_window
    enable_confidence_head confidence_head_with_markov
"""
_NUMBERS = ("confidence_head_alpha", "markov_rank", "selector_rank", "max_window_layers")
# By field the values with which layers are those implemented here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "quantization_config": (None,),
    "model_type": ("qwen3", None),
    "projector_type": ("dflash", "dflash2", "dspark", None),
    "markov_head_type": (*GATES, None),
    "conv_kernel_size": (2, None),
}
# z-lab's module scales by these; the other layouts' modules do not read them.
_UNSCALED = dict.fromkeys(SCALES, (1, None)) | {"final_logit_softcapping": (0, None)}


def block_layout(json: Mapping[str, Any]) -> BlockLayout | None:
    """Tells the layout of a block drafter's config; None if it is another model's."""
    if json.get("speculators_model_type") in [*SPECULATORS]:
        return "speculators"
    named = sorted(classes(json) & _CLASSES.keys())
    layout = _CLASSES[named[0]] if named else None
    nested = json.get("dflash_config")
    if layout == "dflash" and isinstance(nested, dict) and nested.get("projector_type") == "dspark":
        return "specforge"
    return layout


def block_fields(json: Mapping[str, Any], layout: BlockLayout) -> dict[str, Any]:
    """Reads a config as fields of `BlockConfig`, except `rope`, with fields of Qwen3's layers under
    their names there.

    Raises:
      UserError: a field is missing, wrong or unknown, or names an option that is not supported.
    """
    nested = json.get("dflash_config") or {}
    if not isinstance(nested, dict):
        raise UserError(f"config.json has dflash_config={nested!r}; it must be an object")
    own, layers = {**json, **nested}, json
    if layout == "speculators":
        layers = speculators_layer(json)
    for name, values in (_NEUTRAL if layout == "dflash" else _NEUTRAL | _UNSCALED).items():
        for where in (own, layers):
            # Where the layers' fields stand by themselves, the type next to them is the library's.
            kind = name == "model_type" and where is not layers
            if not kind:
                cure = f"pass one with {name}={values[0]!r}"
                refuse(where, name, values, f" in block drafters; {cure}")
    unknown = [f"dflash_config.{name}" for name in {*nested} - _NESTED]
    if unknown := sorted([*unknown, *({*json, *layers} - _KNOWN)]):
        raise UserError(
            f"config.json has fields that are not known here: {', '.join(unknown)}; remove them "
            "if they do not change what the drafter computes"
        )
    _check_types({**own, **layers})
    fields = {name: value for name, value in layers.items() if value is not None}
    fields |= _block(own, fields, layout) | _windows(own, fields) | _heads(own)
    return {**fields, "layout": layout}


def _check_types(fields: Mapping[str, Any]) -> None:
    """Refuses flags that are no booleans, and numbers that are none."""
    for name in _FLAGS.split():
        if not isinstance(fields.get(name), bool | None):
            raise UserError(f"config.json has {name}={fields[name]!r}; it must be true or false")
    for name in _NUMBERS:
        if fields.get(name) is not None and not is_number(fields[name]):
            raise UserError(f"config.json has {name}={fields[name]!r}; it must be a number")


def _block(
    own: Mapping[str, Any], layers: Mapping[str, Any], layout: BlockLayout
) -> dict[str, Any]:
    """Reads the block's size, its mask token, and the target's layers that the context is of."""
    kind = own.get("speculators_model_type")
    size = own.get("block_size", 8 if kind else None)
    ids, shift = own.get("target_layer_ids"), 1
    if kind:
        ids, shift = own.get("aux_hidden_state_layer_ids"), 0
    elif ids is None and layout == "dflash":
        ids = default_layers(own.get("num_target_layers"), layers.get("num_hidden_layers"))
    if not ids or not are_layers(ids, least=-shift) or sorted(ids) != ids:
        name = "aux_hidden_state_layer_ids" if kind else "target_layer_ids"
        raise UserError(f"config.json has {name}={ids!r}; it must be a list of ascending layers")
    shifted = layout in ("deepspec", "specforge")
    if kind:
        shifted = own.get("sample_from_anchor", kind == "dspark")
    vocabulary, width = layers.get("vocab_size"), layers.get("hidden_size")
    if own.get("target_hidden_size") not in (width, None):
        raise UserError(
            f"config.json has target_hidden_size={own['target_hidden_size']!r} and hidden_size="
            f"{width!r}; block drafters of another width than their target are not supported"
        )
    return {
        "block_size": size,
        "mask_token_id": own.get("mask_token_id"),
        "feature_layers": tuple(i + shift for i in ids),
        "shifted": shifted,
        "draft_vocab_size": own.get(
            "draft_vocab_size", SPECULATORS_VOCABULARY if kind else vocabulary
        ),
        "target_hidden_size": width,
    }


def default_layers(target: Any, own: Any) -> list[int] | None:
    """z-lab's choice of the layers, by the numbers of the target's and the drafter's own."""
    if type(target) is not int or type(own) is not int:
        return None
    if own == 1:
        return [target // 2]
    return [round(1 + i * (target - 4) / (own - 1)) for i in range(own)]


def _windows(own: Mapping[str, Any], layers: Mapping[str, Any]) -> dict[str, Any]:
    """Reads which layers see a window of the context, and in which the block is causal."""
    count, window = layers.get("num_hidden_layers"), layers.get("sliding_window")
    if type(count) is not int:
        return {}
    windowed = window is not None and layers.get("use_sliding_window", False)
    first = layers.get("max_window_layers", 28) if windowed else count
    # As Qwen3's config fills them in.
    types = layer_types(layers, [SLIDING if i >= first else FULL for i in range(count)])
    narrow = tuple(i for i, kind in enumerate(types) if kind == SLIDING)
    if narrow and (window is None or layers.get("use_sliding_window") is False):
        raise UserError(
            "config.json has layers of sliding attention, and no sliding_window or "
            "use_sliding_window=False"
        )
    # Unless something else is said, the block is causal where attention is sliding.
    causal = narrow
    said = own.get("causal_head") or own.get("causal", own.get("is_causal"))
    if said is not None:
        causal = tuple(range(count)) if said else ()
    if narrow and "speculators_model_type" in own:
        raise UserError(
            "config.json has layers of sliding attention, whose windows speculators counts in "
            "another way than engines do; pass a drafter that attends to all rows"
        )
    return {
        "sliding_window": window if narrow else None,
        "sliding_layers": narrow,
        "causal_layers": causal,
    }


def _heads(own: Mapping[str, Any]) -> dict[str, Any]:
    """Reads pair scores, convolutions, the head of confidence and scales."""
    rank, selector = own.get("markov_rank") or 0, own.get("selector_rank") or 0
    kind = own.get("speculators_model_type")
    if kind == "dspark":
        rank = own.get("markov_rank", 256) or 0
    trained = kind == "dspark" or (own.get("confidence_head_alpha") or 0) > 0
    confident = own.get("enable_confidence_head", trained)
    with_pairs = own.get("confidence_head_with_markov", kind == "dspark" and bool(rank))
    if confident and with_pairs and not rank:
        raise UserError("config.json has confidence_head_with_markov and no markov_rank")
    gate = "linear" if selector else GATES[own.get("markov_head_type") or "vanilla"]
    scales = {name: own[name] for name in SCALES if own.get(name) is not None}
    if scales.get("final_logit_softcapping") == 0:
        del scales["final_logit_softcapping"]
    return {
        **scales,
        "pair_rank": selector or rank,
        "pair_gate": gate,
        "selector_top_k": own.get("selector_top_k") if selector else None,
        "conv_group_size": own.get("conv_group_size"),
        "confidence": ("pairs" if with_pairs else "hidden") if confident else None,
    }
