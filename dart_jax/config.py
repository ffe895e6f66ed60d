"""Model configurations, read from the JSON that lies beside the weights.

Both classes are frozen and hashable: a jitted function takes them as static arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TargetConfig:
    """A dense Qwen3 decoder, in the names of its Hugging Face `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 40960

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.num_hidden_layers < 7:
            raise UserError(
                f"the target has {self.num_hidden_layers} layers; DART reads the features of three "
                "distinct ones (2, L//2, L-3), so it needs at least 7"
            )
        _check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @property
    def feature_layers(self) -> tuple[int, int, int]:
        """Layers whose input is captured for the drafter (docs/method.md, section 1)."""
        return (2, self.num_hidden_layers // 2, self.num_hidden_layers - 3)

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> TargetConfig:
        """Reads a Hugging Face config; refuses by name what would change the maths."""
        kind = json.get("model_type")
        if kind != "qwen3":
            raise UserError(f"target model_type is {kind!r}; only 'qwen3' (dense) is supported")
        _refuse(json, "attention_bias", (False, None))
        _refuse(json, "hidden_act", ("silu",))
        _refuse(json, "use_sliding_window", (False, None))
        _refuse(json, "quantization_config", (None,))
        if any(t != "full_attention" for t in json.get("layer_types") or ()):
            raise UserError("target layer_types other than 'full_attention' are not supported")
        json = _with_rope(json)
        if "rope_theta" not in json:
            raise UserError("config.json lacks rope_theta")
        return cls(**_known_fields(cls, json))

    def to_json(self) -> dict[str, Any]:
        """The config as `transformers` reads it."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "hidden_act": "silu",
            **dataclasses.asdict(self),
        }


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
    """A DART drafter, in the names of the reference's `config.json` (docs/method.md, section 2)."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    draft_length: int
    target_hidden_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4  # what a Llama config without one means
    max_position_embeddings: int = 40960

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @property
    def num_positions(self) -> int:
        """Positions drafted in one forward, d: the last real row's and the mask rows'."""
        return self.draft_length + 1

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> DrafterConfig:
        """Reads the reference's config; refuses by name what would change the maths."""
        if "draft_length" not in json:
            raise UserError("drafter config.json has no draft_length: it is not a DART drafter")
        _refuse(json, "hidden_act", ("silu",))
        if json.get("num_hidden_layers", 1) != 1:
            raise UserError("drafters of more than one layer are not supported")
        json = _with_rope(json)
        json.setdefault("draft_vocab_size", json.get("vocab_size"))
        if json.get("target_hidden_size") is None:
            json["target_hidden_size"] = json.get("hidden_size")
        return cls(**_known_fields(cls, json))

    def to_json(self) -> dict[str, Any]:
        """The config as the reference reads it."""
        return {
            "architectures": ["LlamaForCausalLMDart"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            **dataclasses.asdict(self),
        }


def _check_fields(config: TargetConfig | DrafterConfig) -> None:
    """Refuses values of a wrong kind or range, which JSON cannot rule out."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        least = 0 if field.name == "draft_length" else 1
        if field.type == "bool":
            good, want = isinstance(value, bool), "true or false"
        elif field.type == "int":
            good = isinstance(value, int) and not isinstance(value, bool) and value >= least
            want = f"an integer of at least {least}"
        else:
            good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            want = "a positive number"
        if not good:
            raise UserError(f"config.json has {field.name}={value!r}; it must be {want}")


def _check_attention(heads: int, kv_heads: int, head_dim: int) -> None:
    if heads % kv_heads:
        raise UserError(f"{heads} query heads cannot share {kv_heads} key/value heads evenly")
    if head_dim % 2:
        raise UserError(f"rotary embeddings need an even head_dim, got {head_dim}")


def _refuse(json: Mapping[str, Any], name: str, supported: tuple[Any, ...]) -> None:
    if name in json and json[name] not in supported:
        raise UserError(f"config.json has {name}={json[name]!r}, which is not supported")


def _with_rope(json: Mapping[str, Any]) -> dict[str, Any]:
    """Reads `rope_theta` from where transformers 5 nests it; refuses scaled rotary embeddings."""
    json = dict(json)
    rope = json.get("rope_parameters") or json.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise UserError(f"config.json has rope parameters {rope!r}; they must be an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"RoPE scaling {kind!r} is not supported")
    if "rope_theta" in rope:
        json["rope_theta"] = rope["rope_theta"]
    return json


def _known_fields(cls: type, json: Mapping[str, Any]) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in json]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}")
    return {f.name: json[f.name] for f in fields if f.name in json}
