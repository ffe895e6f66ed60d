"""Target configs, read from the Hugging Face `config.json` next to the weights.

All classes are frozen and hashable, so jitted functions take them as static arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.models.architectures import ARCHITECTURES, Architecture, architecture_of, text_part
from dart_jax.models.config_json.fields import (
    FULL,
    SLIDING,
    check_attention,
    check_fields,
    check_integer,
    known_fields,
    layer_types,
    refuse,
    refuse_unsupported,
    require,
    with_head_defaults,
)
from dart_jax.models.rope import Rope
from dart_jax.models.traits import DraftingConfig, Traits

_TANH_GELU = "gelu_pytorch_tanh"
# Fields that only some architectures have.
_OPTIONS = """
    attention_multiplier attn_logit_softcapping embedding_multiplier final_logit_softcapping
    logits_scaling query_pre_attn_scalar residual_multiplier
"""
# Names that transformers has for an activation -> the one in `inputs.ACTIVATIONS`.
_ACTIVATION_NAMES = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(
        (_TANH_GELU, "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python_tanh"), _TANH_GELU
    ),
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
      shared_intermediate_size: width of the expert that every token passes through, weighted by a
        gate of its own, if there is one.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    dense_layers: tuple[int, ...] = ()
    shared_intermediate_size: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_experts_per_tok > self.num_experts:
            raise UserError(
                f"config.json routes a token to {self.num_experts_per_tok} of "
                f"{self.num_experts} experts"
            )


@dataclasses.dataclass(frozen=True)
class TargetConfig(DraftingConfig):
    """A decoder of the Llama family, with the field names of its Hugging Face `config.json`.

    Attributes:
      model_type: names the architecture: what is not a field here (`architecture`).
      sliding_window: positions that a row of a windowed layer sees, its own included. None if no
        layer has a window.
      sliding_layers: the windowed layers, by default all.
      sliding_rope: RoPE of the windowed layers, or None if it is the same in all layers.
      no_rope_layers: layers without RoPE.
      moe: None for a dense model.
      hidden_act: activation of the gated MLP.
      attention_bias: whether queries, keys and values have biases.
      attention_out_bias: whether the attention's output has one.
      mlp_bias: whether the MLP's three projections have biases.
      attn_logit_softcapping: bound of the attention's scores (`softcap`), if any.
      final_logit_softcapping: bound of the logits, if any.
      query_pre_attn_scalar: the scores' divisor is its square root; by default the head's size.
      attention_multiplier: the scores' factor itself, instead of the above.
      embedding_multiplier: factor on the embeddings.
      residual_multiplier: factor on what attention and MLP add to the residual stream.
      logits_scaling: divisor of the logits.
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
    sliding_layers: tuple[int, ...] | None = None
    sliding_rope: Rope | None = None
    no_rope_layers: tuple[int, ...] = ()
    hidden_act: str = "silu"
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    query_pre_attn_scalar: float | None = None
    attention_multiplier: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)
        for rope in (self.rope, self.sliding_rope):
            if rope is not None:
                rope.check(self.head_dim)
        if self.hidden_act not in _ACTIVATION_NAMES.values() or (
            self.moe and self.hidden_act != "silu"
        ):
            raise UserError(
                f"config.json has hidden_act={self.hidden_act!r}, which is not supported"
            )

    @property
    def architecture(self) -> Architecture:
        """Properties that all models of this `model_type` have in common."""
        return ARCHITECTURES[self.model_type]

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The three layers whose input is captured for the drafter (docs/method.md, section 1);
        empty if the target is too small to have three distinct ones."""
        layers = (2, self.num_hidden_layers // 2, self.num_hidden_layers - 3)
        return layers if self.num_hidden_layers >= 7 else ()

    @property
    def attention_scale(self) -> float | None:
        """Factor on the attention's scores, or None for h ** -0.5."""
        if self.attention_multiplier is not None:
            return self.attention_multiplier
        scalar = self.query_pre_attn_scalar
        return None if scalar is None else scalar**-0.5

    @property
    def norms_all_heads(self) -> bool:
        """Returns True if queries and keys are normalised over all heads together."""
        return self.architecture.qk_norm == "all"

    @property
    def max_length(self) -> int:
        """Maximum sequence length."""
        return self.rope.longest(self.max_position_embeddings)

    def is_sparse(self, layer: int) -> bool:
        """Returns True if a layer has experts instead of a plain MLP."""
        return self.moe is not None and layer not in self.moe.dense_layers

    def window(self, layer: int) -> int | None:
        """Positions that a row of this layer sees, its own included, or None for all."""
        windowed = self.sliding_layers is None or layer in self.sliding_layers
        return self.sliding_window if windowed else None

    def layer_rope(self, layer: int) -> Rope | None:
        """Returns a layer's RoPE, or None if it has none."""
        if layer in self.no_rope_layers:
            return None
        return self.rope if self.window(layer) is None else self.sliding_rope or self.rope

    @property
    def traits(self) -> Traits:
        """Traits of a small model that drafts token by token."""
        return Traits(kind="draft model", sequential=True, couples=True, chain=True, nodes=4)

    @property
    def shared_sizes(self) -> dict[str, int]:
        """What devices that share the model divide evenly, by name."""
        sizes = {"columns of the MLP": self.intermediate_size}
        if self.moe is not None:
            sizes = {} if len(self.moe.dense_layers) == 0 else sizes
            sizes["experts"] = self.moe.num_experts
            if self.moe.shared_intermediate_size is not None:
                sizes["columns of the shared expert"] = self.moe.shared_intermediate_size
        return {"tokens of the vocabulary": self.vocab_size, **sizes}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> TargetConfig:
        """Reads a Hugging Face config; of a vision-language model, its text part.

        Raises:
          UserError: a field is missing or wrong, or names an unsupported option that would change
            the computation.
        """
        json = text_part(json)
        architecture = architecture_of(json)
        refuse_unsupported(json)
        json = {**architecture.defaults, **json}
        for name in ("max_position_embeddings", "rms_norm_eps"):
            json.setdefault(name, getattr(architecture, name))
        require(json, ("num_hidden_layers",))
        layers = _integer(json, "num_hidden_layers")
        fields = with_head_defaults(json)
        fields["hidden_act"] = _activation(json, architecture)
        for name, source in architecture.biases.items():
            if source is False:
                refuse(json, name, (False, None))
            fields[name] = source if isinstance(source, bool) else json.get(source) or False
        for name in {*_OPTIONS.split()} - {*architecture.options}:
            refuse(json, name, (None, getattr(cls, name)))
            fields.pop(name, None)
        fields["sliding_window"], fields["sliding_layers"] = _windows(json, architecture, layers)
        fields["rope"], fields["sliding_rope"] = _ropes(json, architecture)
        if fields["sliding_rope"] == fields["rope"]:
            fields["sliding_rope"] = None
        fields["no_rope_layers"] = _no_rope_layers(json, architecture, layers)
        fields["moe"] = _moe(json) if architecture.moe else None
        return cls(**known_fields(cls, fields))

    def to_json(self) -> dict[str, Any]:
        """Returns the config in the form that `transformers` reads."""
        architecture, layers = self.architecture, range(self.num_hidden_layers)
        json: dict[str, Any] = {"architectures": [architecture.name], **dataclasses.asdict(self)}
        json |= self.rope.to_json()
        dropped = {"rope", "moe", "sliding_layers", "sliding_rope", "no_rope_layers"}
        dropped |= {*architecture.biases, *_OPTIONS.split()}
        dropped -= {*architecture.options}
        for name in dropped:
            del json[name]
        if "hidden_activation" in architecture.defaults:
            json["hidden_activation"] = json.pop("hidden_act")
        # Read by the reference implementation and by old versions of transformers.
        json["attention_bias"] = self.attention_bias
        for name, source in architecture.biases.items():
            if isinstance(source, str):
                json[source] = getattr(self, name)
        if architecture.windows in ("optional", "types") or isinstance(architecture.windows, int):
            windowed = [self.window(i) is not None for i in layers]
            json["layer_types"] = [SLIDING if w else FULL for w in windowed]
        if architecture.windows == "optional":
            json["use_sliding_window"] = self.sliding_window is not None
        if architecture.two_ropes:
            json |= _nested(self.rope, self.sliding_rope or self.rope)
        if architecture.no_rope_interval:
            json["no_rope_layers"] = [int(i not in self.no_rope_layers) for i in layers]
        return json if self.moe is None else json | _moe_json(self.model_type, self.moe)


def _activation(json: Mapping[str, Any], architecture: Architecture) -> Any:
    """Reads the MLP's activation; in Gemma's files "gelu" is its approximation by tanh."""
    name = "hidden_activation" if "hidden_activation" in architecture.defaults else "hidden_act"
    act = json.get(name, "silu")
    if act == "gelu" and architecture.embedding_scaled:
        return _TANH_GELU
    return _ACTIVATION_NAMES.get(act, act) if isinstance(act, str) else act


def _windows(
    json: Mapping[str, Any], architecture: Architecture, layers: int
) -> tuple[Any, tuple[int, ...] | None]:
    """Reads the sliding window, and the layers that have it: None for all."""
    rule = architecture.windows
    if rule == "none":
        refuse(json, "use_sliding_window", (False, None))
    unused = rule == "none" or (rule == "optional" and not json.get("use_sliding_window"))
    window = None if unused else json.get("sliding_window")  # configs may set it unused
    expected = _default_layer_types(json, architecture, layers, windowed=window is not None)
    types = layer_types(json, expected)
    if types != expected and (rule in ("none", "all") or window is None):
        raise UserError(f"target layer_types other than {expected[0]!r} are not supported here")
    sliding = tuple(i for i, kind in enumerate(types) if kind == SLIDING)
    if sliding and window is None:
        raise UserError("config.json has layers of sliding attention and no sliding_window")
    return window if sliding else None, None if len(sliding) in (0, layers) else sliding


def _default_layer_types(
    json: Mapping[str, Any], architecture: Architecture, layers: int, *, windowed: bool
) -> list[str]:
    """Returns the kind of each layer's attention by the rule `Architecture.windows`."""
    rule, pattern = architecture.windows, architecture.window_pattern
    if isinstance(rule, int):
        if pattern is not None and not json.get("layer_types"):
            rule = _integer(json, pattern, rule)
        return [SLIDING if (i + 1) % rule else FULL for i in range(layers)]
    first = 0 if windowed else layers
    if rule == "optional" and windowed:
        first = _integer(json, "max_window_layers", 28, least=0)
    return [SLIDING if i >= first else FULL for i in range(layers)]


def _ropes(json: Mapping[str, Any], architecture: Architecture) -> tuple[Rope, Rope | None]:
    """Reads the RoPE of full and, if it can differ, of sliding attention."""
    theta, partial = architecture.rope_theta, architecture.partial_rope
    if not architecture.two_ropes:
        return Rope.from_json(json, theta, partial), None
    nested = json.get("rope_parameters")
    if not isinstance(nested, dict) or not {FULL, SLIDING} & nested.keys():
        # The older layout: scaling is for full attention.
        local = {"rope_theta": json.get("rope_local_base_freq", architecture.sliding_theta)}
        return Rope.from_json(json, theta), Rope.from_json(local)
    plain = {n: v for n, v in json.items() if n not in ("rope_scaling", "rope_theta")}
    # As in transformers, `rope_scaling` is for full attention in this layout, too.
    full = {**(nested.get(FULL) or {}), **(json.get("rope_scaling") or {})}
    sliding = {**plain, "rope_parameters": nested.get(SLIDING)}
    return (
        Rope.from_json({**plain, "rope_parameters": full}, json.get("rope_theta", theta)),
        Rope.from_json(sliding, json.get("rope_local_base_freq", architecture.sliding_theta)),
    )


def _nested(full: Rope, sliding: Rope) -> dict[str, Any]:
    """RoPE parameters in the layout of transformers 5, by kind of attention."""
    ropes = {FULL: full, SLIDING: sliding}
    parameters = {
        kind: {"rope_type": rope.kind, "rope_theta": rope.theta, **dict(rope.scaling)}
        for kind, rope in ropes.items()
    }
    return {"rope_parameters": parameters, "rope_local_base_freq": sliding.theta}


def _no_rope_layers(
    json: Mapping[str, Any], architecture: Architecture, layers: int
) -> tuple[int, ...]:
    """Reads which layers have no RoPE; `config.json` lists a 1 for each layer that has it."""
    if architecture.no_rope_interval is None:
        refuse(json, "no_rope_layers", (None, [], [1] * layers))
        return ()
    with_rope = json.get("no_rope_layers")
    if with_rope is None:
        every = _integer(json, "no_rope_layer_interval", architecture.no_rope_interval)
        with_rope = [(i + 1) % every for i in range(layers)]
    if not isinstance(with_rope, list) or len(with_rope) != layers:
        raise UserError(f"config.json has no_rope_layers={with_rope!r}, not one entry per layer")
    return tuple(i for i, has in enumerate(with_rope) if not has)


def _moe(json: Mapping[str, Any]) -> MoEConfig:
    """Reads the experts of a Qwen-MoE or Mixtral config."""
    fields: dict[str, Any] = dict(json)
    fields.setdefault("num_experts", json.get("num_local_experts"))
    mixtral = json["model_type"] == "mixtral"
    if mixtral:
        fields.update(moe_intermediate_size=json.get("intermediate_size"))
    names = ["num_experts", "num_experts_per_tok", "moe_intermediate_size"]
    if json["model_type"] == "qwen2_moe":
        names.append("shared_expert_intermediate_size")
    require(fields, names)
    return MoEConfig(
        num_experts=fields["num_experts"],
        num_experts_per_tok=fields["num_experts_per_tok"],
        intermediate_size=fields["moe_intermediate_size"],
        norm_topk_prob=mixtral or json.get("norm_topk_prob", False),
        dense_layers=() if mixtral else _dense_layers(json),
        shared_intermediate_size=fields[names[3]] if len(names) > 3 else None,
    )


def _moe_json(model_type: str, moe: MoEConfig) -> dict[str, Any]:
    """Returns the fields of the experts in a Qwen-MoE or Mixtral config."""
    json: dict[str, Any] = {"num_experts_per_tok": moe.num_experts_per_tok}
    if model_type == "mixtral":
        sizes = {"intermediate_size": moe.intermediate_size}
        return json | {"num_local_experts": moe.num_experts} | sizes
    if moe.shared_intermediate_size is not None:
        json["shared_expert_intermediate_size"] = moe.shared_intermediate_size
    return json | {
        "num_experts": moe.num_experts,
        "moe_intermediate_size": moe.intermediate_size,
        "norm_topk_prob": moe.norm_topk_prob,
        "mlp_only_layers": list(moe.dense_layers),
        "decoder_sparse_step": 1,
    }


def _dense_layers(json: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the layers of a Qwen-MoE model without experts."""
    layers, step = _integer(json, "num_hidden_layers"), _integer(json, "decoder_sparse_step", 1)
    only = json.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise UserError(f"config.json has mlp_only_layers={only!r}; it must be a list of layers")
    return tuple(i for i in range(layers) if i in only or (i + 1) % step)


def _integer(json: Mapping[str, Any], name: str, default: int | None = None, least: int = 1) -> int:
    """Reads an integer of at least `least`."""
    value = json.get(name, default)
    check_integer(name, value, least)
    return value
