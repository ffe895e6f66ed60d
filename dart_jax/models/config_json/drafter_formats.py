"""Formats of drafters other than DART's and EAGLE-3's own, told by their `config.json`. For block
drafters see `block_formats.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.models.config_json.fields import refuse

DART = "LlamaForCausalLMDart"
EAGLE3 = "LlamaForCausalLMEagle3"
# EAGLE-3 drafters of Llama-like layers: the classes of SpecForge and ModelOpt, vLLM, speculators.
EAGLE3_CLASSES = (EAGLE3, "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "Eagle3Speculator")
# Formats that cannot be read, by their classes or model types, and by fields that only they have.
_OTHERS = re.compile(
    "^eagle3deepseek|^p?eagle(?!3)|eagle$|^domino|^pard|dflash|dspark|hydra|medusa|mtp|redrafter"
    "|^mlp_?speculator",
    re.IGNORECASE,
)
_OTHER_FIELDS = """
    dflash_config hydra_num_heads markov_rank medusa_num_heads parallel_drafting pard_token
    ptd_token_id
"""
# Of drafters of speculators that do not say it.
SPECULATORS_VOCABULARY = 32000
_CURE = (
    "pass a DART, DFlash or DSpark drafter, an EAGLE-3 drafter of one layer, or a small language "
    "model with the target's tokenizer"
)


def classes(json: Mapping[str, Any]) -> set[str]:
    """Returns the classes that a config names."""
    named = json.get("architectures")
    return {name for name in named if isinstance(name, str)} if isinstance(named, list) else set()


def is_drafter(json: Mapping[str, Any]) -> bool:
    """Returns True if this looks like the config of a drafter that is no language model."""
    fields = {"draft_length", "draft_vocab_size", "speculators_model_type"}
    named = {DART, *EAGLE3_CLASSES} & classes(json)
    return bool(named or fields & json.keys()) or _other(json) is not None


def known_format(json: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config in the layout of DART's or EAGLE-3's authors.

    Raises:
      UserError: it is that of another format.
    """
    if "speculators_model_type" in json:
        json = _of_speculators(json)
    if (sign := _other(json)) is not None:
        raise UserError(
            f"config.json has {sign}: it is that of a drafter of a format that cannot be read; "
            f"{_CURE}"
        )
    return json


def _of_speculators(json: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the layout of vLLM's library speculators: the layer's shapes stand by themselves."""
    kind = json["speculators_model_type"]
    if kind != "eagle3":
        raise UserError(
            f"config.json has speculators_model_type={kind!r}; of the drafters of speculators only "
            f"'eagle3', 'dflash', 'dflash2' and 'dspark' can be read: {_CURE}"
        )
    layer = speculators_layer(json)
    kinds = ("llama", "qwen3", None)
    refuse(
        layer, "model_type", kinds, " in drafters of speculators; pass one of 'llama' or 'qwen3'"
    )
    # Names and dtypes of both mean the same; where the library's own fields and the layer's
    # overlap, its own count.
    own = {n: v for n, v in json.items() if n not in ("transformer_layer_config", "model_type")}
    return {**layer, "draft_vocab_size": SPECULATORS_VOCABULARY, **own}


def speculators_layer(json: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the layers' fields of a speculators drafter; raises UserError if it has none."""
    layer = json.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise UserError(
            "config.json is that of a drafter of speculators, but has no transformer_layer_config; "
            "pass the directory as its authors published it"
        )
    return layer


def _other(json: Mapping[str, Any]) -> str | None:
    """Finds the field that tells a format that cannot be read, with its value."""
    names = {"architectures": classes(json), "model_type": {str(json.get("model_type"))}}
    for field, values in names.items():
        if any(map(_OTHERS.search, values - {*EAGLE3_CLASSES})):
            return f"{field}={json[field]!r}"
    signs = (name for name in _OTHER_FIELDS.split() if json.get(name) is not None)
    sign = next((name for name in signs if json[name] is not False), None)
    return sign and f"{sign}={json[sign]!r}"
