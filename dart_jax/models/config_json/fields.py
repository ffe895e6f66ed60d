"""Checks of `config.json` fields, shared by targets and drafters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"  # in `layer_types`
_FROM_ZERO = ("draft_length", "mask_token_id", "pair_rank")  # other integers are at least 1
# Fields that change the computation in ways that are not supported -> values that do not.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "is_causal": (True, None),
    "is_encoder_decoder": (False, None),
    "per_layer_config": ({}, None),
    "transformers_weights": (None,),
    "use_bidirectional_attention": (False, None),
    "use_mrope": (False, None),
}


def check_fields(config: Any) -> None:
    """Raises UserError if a field of a config dataclass has a wrong type or range."""
    for field in dataclasses.fields(config):
        name, value, kind = field.name, getattr(config, field.name), str(field.type)
        if value is None and kind.endswith(" | None"):
            continue
        kind = kind.removesuffix(" | None")
        if kind == "bool" and not isinstance(value, bool):
            raise UserError(f"config.json has {name}={value!r}; it must be true or false")
        if kind == "int":
            check_integer(name, value, int(name not in _FROM_ZERO))
        elif kind == "float":
            check_positive(name, value)


def check_integer(name: str, value: Any, least: int = 1) -> None:
    """Raises UserError if a field is no integer of at least `least`."""
    if type(value) is not int or value < least:
        raise UserError(
            f"config.json has {name}={value!r}; it must be an integer of at least {least}"
        )


def check_positive(name: str, value: Any) -> None:
    """Raises UserError if a field is no positive number."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise UserError(f"config.json has {name}={value!r}; it must be a positive number")


def is_number(value: Any) -> bool:
    """Returns True if a field is a number, and no flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_attention(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises UserError if the heads cannot form grouped-query attention with RoPE."""
    if heads % kv_heads:
        raise UserError(f"{heads} query heads cannot share {kv_heads} key/value heads evenly")
    if head_dim % 2:
        raise UserError(f"rotary embeddings need an even head_dim, got {head_dim}")


def refuse(json: Mapping[str, Any], name: str, supported: tuple[Any, ...], more: str = "") -> None:
    """Raises UserError, which `more` continues, if a field has a value that is not supported."""
    if name in json and json[name] not in supported:
        raise UserError(f"config.json has {name}={json[name]!r}, which is not supported{more}")


def refuse_unsupported(json: Mapping[str, Any]) -> None:
    """Raises UserError if a field of a target's config switches on what no architecture here has.
    Fields that transformers does not know change nothing there, nor here."""
    for name, supported in _UNSUPPORTED.items():
        refuse(json, name, supported)


def with_head_defaults(json: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what Llama-like configs may leave out: key/value heads and the head's size."""
    fields = dict(json)
    heads, size = json.get("num_attention_heads"), json.get("hidden_size")
    if isinstance(heads, int) and isinstance(size, int) and heads > 0:
        if fields.get("num_key_value_heads") is None:
            fields["num_key_value_heads"] = heads
        if fields.get("head_dim") is None and size % heads == 0:
            fields["head_dim"] = size // heads
    return fields


def known_fields(cls: type, json: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of dataclass `cls`; raises UserError if a required one is missing."""
    fields = dataclasses.fields(cls)
    require(json, [f.name for f in fields if f.default is dataclasses.MISSING])
    return {f.name: json[f.name] for f in fields if f.name in json}


def require(json: Mapping[str, Any], names: Any) -> None:
    """Raises UserError if one of the fields `names` is missing."""
    missing = [name for name in names if json.get(name, dataclasses.MISSING) is dataclasses.MISSING]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}")


def layer_types(json: Mapping[str, Any], default: list[str]) -> list[str]:
    """Reads the kind of each layer's attention; raises UserError if it is not `FULL` or `SLIDING`
    for as many layers as the default has."""
    types = json.get("layer_types") or default
    known = isinstance(types, list) and all(kind in (FULL, SLIDING) for kind in types)
    if not known or len(types) != len(default):
        raise UserError(
            f"config.json has layer_types={types!r}; they must be {FULL!r} or {SLIDING!r} for "
            f"each of {len(default)} layers"
        )
    return types


def are_layers(ids: Any, least: int = 0) -> bool:
    """Returns True if a field is a list of different layers, by numbers of at least `least`."""
    numbers = isinstance(ids, list) and all(type(i) is int and i >= least for i in ids)
    return numbers and len({*ids}) == len(ids)
