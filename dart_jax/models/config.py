"""Target configs, read from the Hugging Face `config.json` next to the weights.

All classes are frozen and hashable, so jitted functions take them as static arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.models.config_fields import (
    check_attention,
    check_fields,
    known_fields,
    refuse,
    require,
    with_head_defaults,
)
from dart_jax.models.rope import Rope

# `model_type` -> target architecture, and the RoPE base if the config has none.
_ARCHITECTURES: dict[str, tuple[str, float | None]] = {
    "qwen3": ("Qwen3ForCausalLM", None),
    "qwen3_moe": ("Qwen3MoeForCausalLM", None),
    "llama": ("LlamaForCausalLM", 1e4),
    "mistral": ("MistralForCausalLM", 1e4),
    "mixtral": ("MixtralForCausalLM", 1e6),
}


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Mixture-of-experts layers, which replace the MLP.

    Attributes:
      num_experts: E.
      num_experts_per_tok: experts per token.
      intermediate_size: width of one expert.
      norm_topk_prob: whether the chosen experts' weights are scaled to sum to 1.
      dense_layers: layers with a plain MLP.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_experts_per_tok > self.num_experts:
            raise UserError(
                f"config.json routes a token to {self.num_experts_per_tok} of "
                f"{self.num_experts} experts"
            )


@dataclasses.dataclass(frozen=True)
class TargetConfig:
    """A decoder of the Llama family, with the field names of its Hugging Face `config.json`.

    Attributes:
      sliding_window: positions a row may attend back; sequences never grow beyond it.
      moe: None for a dense model.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope: Rope = Rope(1e6)
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 40960
    model_type: str = "qwen3"
    sliding_window: int | None = None
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The three layers whose input is captured for the drafter (docs/method.md, section 1);
        empty if the target is too small to have three distinct ones."""
        layers = (2, self.num_hidden_layers // 2, self.num_hidden_layers - 3)
        return layers if self.num_hidden_layers >= 7 else ()

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return self.model_type in ("qwen3", "qwen3_moe")

    @property
    def max_length(self) -> int:
        """Maximum sequence length, limited by the positions and the sliding window."""
        length = max(self.max_position_embeddings, self.rope.max_positions)
        return min(length, self.sliding_window or length)

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts instead of a plain MLP."""
        return self.moe is not None and layer not in self.moe.dense_layers

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> TargetConfig:
        """Reads a Hugging Face config.

        Raises:
          UserError: a field is missing or wrong, or names an unsupported option that would change
            the computation.
        """
        kind = json.get("model_type")
        architectures = json.get("architectures") or []
        if not isinstance(kind, str) or kind not in _ARCHITECTURES:
            raise UserError(
                f"target model_type is {kind!r}; supported are {', '.join(_ARCHITECTURES)}"
            )
        architecture, default_theta = _ARCHITECTURES[kind]
        if architectures and (
            not isinstance(architectures, list) or architecture not in architectures
        ):
            raise UserError(
                f"the target's architectures are {architectures!r}, which is not supported; with "
                f"model_type {kind!r} they must be [{architecture!r}]"
            )
        refuse(json, "attention_bias", (False, None))
        refuse(json, "mlp_bias", (False, None))
        refuse(json, "hidden_act", ("silu",))
        refuse(json, "quantization_config", (None,))
        refuse(json, "pretraining_tp", (0, 1, None))
        types = json.get("layer_types") or []
        if not isinstance(types, list) or any(t != "full_attention" for t in types):
            raise UserError("target layer_types other than 'full_attention' are not supported")
        fields = with_head_defaults(json, guess=kind not in ("qwen3",))
        fields["rope"] = Rope.from_json(json, default_theta)
        if kind == "mistral":
            fields.setdefault("sliding_window", 4096)
        elif kind != "mixtral":
            refuse(json, "use_sliding_window", (False, None))
            fields["sliding_window"] = None  # configs may set it without using it
        fields["moe"] = _moe(json) if kind in ("qwen3_moe", "mixtral") else None
        # Required, because their defaults differ between architectures.
        require(json, ("rms_norm_eps", "max_position_embeddings"))
        return cls(**known_fields(cls, fields))

    def to_json(self) -> dict[str, Any]:
        """Returns the config in the form that `transformers` reads."""
        json = {
            "architectures": [_ARCHITECTURES[self.model_type][0]],
            "attention_bias": False,
            "hidden_act": "silu",
            **dataclasses.asdict(self),
            **self.rope.to_json(),
        }
        del json["rope"], json["moe"]
        if self.moe is None:
            return json
        json["num_experts_per_tok"] = self.moe.num_experts_per_tok
        if self.model_type == "mixtral":
            return {
                **json,
                "num_local_experts": self.moe.num_experts,
                "intermediate_size": self.moe.intermediate_size,
            }
        return {
            **json,
            "num_experts": self.moe.num_experts,
            "moe_intermediate_size": self.moe.intermediate_size,
            "norm_topk_prob": self.moe.norm_topk_prob,
            "mlp_only_layers": list(self.moe.dense_layers),
            "decoder_sparse_step": 1,
        }


def _moe(json: Mapping[str, Any]) -> MoEConfig:
    """Reads the experts of a Qwen3-MoE or Mixtral config."""
    fields: dict[str, Any] = dict(json)
    fields.setdefault("num_experts", json.get("num_local_experts"))
    mixtral = json["model_type"] == "mixtral"
    if mixtral:
        fields.update(moe_intermediate_size=json.get("intermediate_size"))
    names = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_hidden_layers")
    require(fields, names)
    return MoEConfig(
        num_experts=fields["num_experts"],
        num_experts_per_tok=fields["num_experts_per_tok"],
        intermediate_size=fields["moe_intermediate_size"],
        norm_topk_prob=mixtral or json.get("norm_topk_prob", False),
        dense_layers=() if mixtral else _dense_layers(json),
    )


def _dense_layers(json: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the layers of a Qwen3-MoE model without experts."""
    layers, step = json["num_hidden_layers"], json.get("decoder_sparse_step", 1)
    only = json.get("mlp_only_layers") or []
    for name, value in (("num_hidden_layers", layers), ("decoder_sparse_step", step)):
        if type(value) is not int or value < 1:
            raise UserError(
                f"config.json has {name}={value!r}; it must be an integer of at least 1"
            )
    if not isinstance(only, list):
        raise UserError(f"config.json has mlp_only_layers={only!r}; it must be a list of layers")
    return tuple(i for i in range(layers) if i in only or (i + 1) % step)
