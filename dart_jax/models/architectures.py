"""The supported target architectures: what is fixed by a config's `model_type`.

All of them are the decoder in `dart_jax.models.networks.target`. What a `config.json` decides is in
`dart_jax.models.config.TargetConfig`; everything else that differs between them is in the table
below, in the terms of the classes of `transformers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from dart_jax.errors import UserError, warn

# Fields of TargetConfig that switch biases on -> the fields of `config.json`, or constants.
_NO_BIASES = {"attention_bias": False, "attention_out_bias": False, "mlp_bias": False}
_ATTENTION_BIASES = {
    **dict.fromkeys(("attention_bias", "attention_out_bias"), "attention_bias"),
    "mlp_bias": False,
}
_LLAMA_BIASES = {**_ATTENTION_BIASES, "mlp_bias": "mlp_bias"}
_QWEN2_BIASES = {**_NO_BIASES, "attention_bias": True}
_GEMMA_DEFAULTS = {"vocab_size": 256000, "head_dim": 256, "tie_word_embeddings": True}
_GEMMA2_DEFAULTS = {
    **_GEMMA_DEFAULTS,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """Properties that all models of one `model_type` have in common.

    Attributes:
      name: the class of `transformers`.
      max_position_embeddings: the maximum length if the config has none.
      moe: whether some layers have experts instead of an MLP.
      biases: fields of TargetConfig that switch biases on, with the fields of `config.json` that
        set them, or constants.
      defaults: values of the fields that `config.json` may leave out, where they matter here and
        differ from TargetConfig's.
      embedding_scaled: whether the embeddings are multiplied by sqrt(D), rounded to their dtype.
      fused: whether files hold queries, keys and values in one tensor, and the MLP's gate and up
        projections in another.
      no_rope_interval: every how many layers one has no RoPE, if `no_rope_layers` does not say;
        None if all have it.
      norm_offset: None if norms round to the dtype of the weights before they multiply by the
        scale; otherwise they multiply in float32, by the scale plus this number.
      norms: whether normalisation comes before attention and MLP, after them, or both.
      options: further fields of TargetConfig that `config.json` may set.
      partial_rope: whether RoPE may rotate only a part of each head.
      qk_norm: whether queries and keys are normalised before RoPE: per head, over all heads
        together, or not at all.
      rms_norm_eps: what norms add to the mean square if the config does not say.
      rope_theta: the RoPE base if the config has none.
      sliding_theta: the RoPE base of layers with a sliding window, if the config has none. None if
        all layers have the same RoPE.
      window_pattern: the field that changes n in `windows`.
      windows: which layers have a sliding window: none; all; those in `layer_types`, otherwise all
        ("types"), those from `max_window_layers` on if `use_sliding_window` is set ("optional"), or
        all but every n-th (a number).
    """

    name: str
    biases: Mapping[str, str | bool] = dataclasses.field(default_factory=lambda: _NO_BIASES)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    embedding_scaled: bool = False
    fused: bool = False
    max_position_embeddings: int = 2048
    moe: bool = False
    no_rope_interval: int | None = None
    norm_offset: float | None = None
    norms: Literal["before", "after", "both"] = "before"
    options: tuple[str, ...] = ()
    partial_rope: bool = False
    qk_norm: Literal["head", "all"] | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4
    sliding_theta: float | None = None
    window_pattern: str | None = None
    windows: Literal["none", "all", "types", "optional"] | int = "none"

    @property
    def two_ropes(self) -> bool:
        """Returns True if layers with a sliding window can have another RoPE."""
        return self.sliding_theta is not None


_QWEN = partial(Architecture, max_position_embeddings=32768)
_MISTRAL = partial(Architecture, max_position_embeddings=131072, defaults={"sliding_window": 4096})
_GEMMA = partial(Architecture, biases=_ATTENTION_BIASES, embedding_scaled=True, norm_offset=1.0)
_OLMO = partial(
    Architecture,
    rms_norm_eps=1e-5,
    biases=_ATTENTION_BIASES,
    norm_offset=0.0,
    norms="after",
    qk_norm="all",
)

ARCHITECTURES: dict[str, Architecture] = {
    "qwen3": _QWEN(
        name="Qwen3ForCausalLM",
        biases=_ATTENTION_BIASES,
        defaults={"num_key_value_heads": 32, "head_dim": 128},
        qk_norm="head",
        windows="optional",
    ),
    "qwen3_moe": _QWEN(
        name="Qwen3MoeForCausalLM", biases=_ATTENTION_BIASES, moe=True, qk_norm="head"
    ),
    "qwen2": _QWEN(name="Qwen2ForCausalLM", biases=_QWEN2_BIASES, windows="optional"),
    "qwen2_moe": _QWEN(
        name="Qwen2MoeForCausalLM",
        biases={**_NO_BIASES, "attention_bias": "qkv_bias"},
        defaults={"qkv_bias": True},
        moe=True,
    ),
    "llama": Architecture(name="LlamaForCausalLM", biases=_LLAMA_BIASES),
    "mistral": _MISTRAL(name="MistralForCausalLM", windows="all"),
    "ministral": _MISTRAL(name="MinistralForCausalLM", windows="types"),
    "mixtral": Architecture(
        name="MixtralForCausalLM",
        rms_norm_eps=1e-5,
        max_position_embeddings=131072,
        moe=True,
        rope_theta=1e6,
        windows="all",
    ),
    "phi3": Architecture(
        name="Phi3ForCausalLM",
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
        defaults={"original_max_position_embeddings": 4096},
        fused=True,
        partial_rope=True,
        windows="all",
    ),
    "gemma": _GEMMA(
        name="GemmaForCausalLM",
        max_position_embeddings=8192,
        defaults={**_GEMMA_DEFAULTS, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma2": _GEMMA(
        name="Gemma2ForCausalLM",
        max_position_embeddings=8192,
        defaults={
            **_GEMMA2_DEFAULTS,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        norms="both",
        options=("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        windows=2,
    ),
    "gemma3_text": _GEMMA(
        name="Gemma3ForCausalLM",
        max_position_embeddings=131072,
        defaults={**_GEMMA2_DEFAULTS, "vocab_size": 262208},
        norms="both",
        options=("final_logit_softcapping", "query_pre_attn_scalar"),
        qk_norm="head",
        rope_theta=1e6,
        sliding_theta=1e4,
        window_pattern="sliding_window_pattern",
        windows=6,
    ),
    "granite": Architecture(
        name="GraniteForCausalLM",
        biases=_LLAMA_BIASES,
        defaults={"attention_multiplier": 1.0},
        options=(
            *("attention_multiplier", "embedding_multiplier"),
            *("logits_scaling", "residual_multiplier"),
        ),
    ),
    "smollm3": Architecture(
        name="SmolLM3ForCausalLM",
        max_position_embeddings=32768,
        biases=_LLAMA_BIASES,
        defaults={"tie_word_embeddings": True},
        no_rope_interval=4,
        rope_theta=2e6,
    ),
    "seed_oss": Architecture(
        name="SeedOssForCausalLM",
        max_position_embeddings=524288,
        biases={name: name for name in _NO_BIASES},
        defaults={"attention_bias": True, "head_dim": 128},
    ),
    "olmo2": _OLMO(name="Olmo2ForCausalLM"),
    "olmo3": _OLMO(
        name="Olmo3ForCausalLM",
        defaults={"sliding_window": 4096},
        rope_theta=5e5,
        sliding_theta=5e5,
        windows=4,
    ),
}

# `model_type` of the text part of vision-language models -> the architecture that computes it, and
# the values of fields that its config may leave out, where they are others. For text alone, the
# three coordinates of a position are equal, which makes Qwen's M-RoPE plain RoPE.
_QWEN2_VL = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
_QWEN3_VL = {"max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 5e5}
_TEXT_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_5_vl_text": ("qwen2", _QWEN2_VL),
    "qwen2_vl_text": ("qwen2", _QWEN2_VL),
    "qwen3_vl_moe_text": ("qwen3_moe", _QWEN3_VL),
    "qwen3_vl_text": ("qwen3", _QWEN3_VL),
}
# `model_type` of vision-language models -> that of their text part, if it is not named.
_QWEN_VL = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe")
_VISION_LANGUAGE = {name: f"{name}_text" for name in ("gemma3", *_QWEN_VL)} | {
    "mistral3": "mistral"
}


def text_part(json: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of the text part of a vision-language model, others unchanged."""
    outer = json.get("model_type")
    if not isinstance(outer, str) or outer not in _VISION_LANGUAGE:
        return dict(json)
    inner = json.get("text_config")
    # Old configs have the fields of the text part next to the others.
    text = {"model_type": _VISION_LANGUAGE[outer]} | (inner if isinstance(inner, dict) else {})
    if not isinstance(inner, dict):
        text = {**json, **text}
    elif json.get("tie_word_embeddings") is not None:
        # A vision-language model ties or unties its head as a whole.
        text["tie_word_embeddings"] = json["tie_word_embeddings"]
    kind = text["model_type"]
    if kind == "qwen3_vl_moe_text":
        text["norm_topk_prob"] = True  # regardless of the config
    text["model_type"], defaults = _TEXT_PARTS.get(kind, (kind, {}))
    text |= {name: value for name, value in defaults.items() if text.get(name) is None}
    text.pop("architectures", None)
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := text.get(name), dict):
            text[name] = {
                key: "default" if value == "mrope" else value
                for key, value in rope.items()
                if key not in ("mrope_section", "mrope_interleaved")
            }
    return text


def architecture_of(json: Mapping[str, Any]) -> Architecture:
    """Returns the architecture that a config names; raises UserError if it is not supported."""
    kind = json.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UserError(f"target model_type is {kind!r}; supported are {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[kind]
    # Transformers decides by `model_type` alone, unless it is allowed to run code that comes with
    # the checkpoint.
    named = json.get("architectures") or []
    names = named if isinstance(named, list) else [named]
    base = architecture.name.removesuffix("ForCausalLM") + "Model"
    same = {architecture.name.lower(), base.lower()}
    if not names or any(isinstance(name, str) and name.lower() in same for name in names):
        return architecture
    if json.get("auto_map"):
        raise UserError(
            f"the target's architecture is {named!r}, which its own code (auto_map) computes and "
            f"dart_jax does not know; with model_type {kind!r} it must be "
            f"{architecture.name!r}"
        )
    warn(f"config.json names the architecture {named!r}; read as model_type {kind!r} says")
    return architecture
