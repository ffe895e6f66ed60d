"""Formats of drafters other than DART's and EAGLE-3's own, told by their `config.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError

DART = "LlamaForCausalLMDart"
EAGLE3 = "LlamaForCausalLMEagle3"
# EAGLE-3 drafters of Llama-like layers: the classes of SpecForge and ModelOpt, vLLM, speculators.
EAGLE3_CLASSES = (
    EAGLE3,
    "Eagle3LlamaForCausalLM",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3Speculator",
)
# Those that cannot be read, by the names of their classes or model types, and by their own fields.
_OTHERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "DSpark": ("DSpark", ("markov_rank",)),
    "DFlash": ("DFlash", ("dflash_config",)),
    "Domino": ("^Domino", ()),
    "P-EAGLE": ("^PEagle", ("ptd_token_id",)),
    "PARD or P-EAGLE": ("^Pard", ("pard_token",)),
    "EAGLE-3 (latent attention)": ("^Eagle3Deepseek", ()),
    "EAGLE-1 or EAGLE-2": ("CausalLMEagle$|^Eagle(?!3)\\w*ForCausalLM$|^eagle$", ()),
    "Medusa": ("^Medusa", ("medusa_num_heads",)),
    "Hydra": ("^Hydra", ("hydra_num_heads",)),
    "MLP speculator": ("^MLP_?Speculator", ()),
    "ReDrafter": ("^ReDrafter", ()),
    "MTP": ("MTP", ()),
}
_CURE = (
    "pass a DART drafter, an EAGLE-3 drafter of one layer, or a small language model with the "
    "target's tokenizer"
)


def classes(json: Mapping[str, Any]) -> set[str]:
    """The classes that a config names."""
    named = json.get("architectures")
    return {name for name in named if isinstance(name, str)} if isinstance(named, list) else set()


def is_drafter(json: Mapping[str, Any]) -> bool:
    """Whether this looks like the config of a drafter that is no language model."""
    fields = {"draft_length", "draft_vocab_size", "speculators_model_type"}
    named = {DART, *EAGLE3_CLASSES} & classes(json)
    return bool(named or fields & json.keys()) or _other(json) is not None


def known_format(json: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config in the layout of DART's or EAGLE-3's authors.

    Raises:
      UserError: it is that of another format.
    """
    if json.get("parallel_drafting"):
        raise UserError(
            f"config.json has parallel_drafting={json['parallel_drafting']!r}: it is that of a "
            f"PARD or P-EAGLE drafter, which cannot be read; {_CURE}"
        )
    if "speculators_model_type" in json:
        json = _of_speculators(json)
    if (found := _other(json)) is not None:
        name, sign = found
        raise UserError(
            f"config.json has {sign}: it is that of a drafter of the format {name}, which cannot "
            f"be read; {_CURE}"
        )
    return json


def _of_speculators(json: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the layout of vLLM's library speculators: the layer's shapes stand by themselves."""
    kind, layer = json["speculators_model_type"], json.get("transformer_layer_config")
    if kind != "eagle3":
        raise UserError(
            f"config.json has speculators_model_type={kind!r}; of the drafters of speculators only "
            f"'eagle3' can be read: {_CURE}"
        )
    if not isinstance(layer, dict):
        raise UserError(
            "config.json is that of a drafter of speculators, but has no transformer_layer_config; "
            "pass the directory as its authors published it"
        )
    kinds = ("llama", "qwen3", None)
    if layer.get("model_type") not in kinds:
        raise UserError(
            f"transformer_layer_config has model_type={layer['model_type']!r}; drafters of "
            "speculators have layers of 'llama' or 'qwen3'"
        )
    # Names and dtypes of both mean the same; where the library's own fields and the layer's
    # overlap, its own count.
    own = {n: v for n, v in json.items() if n not in ("transformer_layer_config", "model_type")}
    return {**layer, "draft_vocab_size": 32000, **own}


def _other(json: Mapping[str, Any]) -> tuple[str, str] | None:
    """The name of a format that cannot be read, and the field that tells it."""
    for name, (pattern, fields) in _OTHERS.items():
        for field in fields:
            if json.get(field) is not None:
                return name, f"{field}={json[field]!r}"
        for field, values in (
            ("architectures", classes(json)),
            ("model_type", {str(json.get("model_type"))}),
        ):
            for value in values - {*EAGLE3_CLASSES}:
                if re.search(pattern, value, re.IGNORECASE):
                    return name, f"{field}={json[field]!r}"
    return None
