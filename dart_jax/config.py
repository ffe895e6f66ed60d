"""Model configurations, read from the JSON that lies beside the weights.

All classes are frozen and hashable: a jitted function takes them as static arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.rope import Rope

# Architectures of targets by `model_type`, with the RoPE base of a config that names none.
_ARCHITECTURES: dict[str, tuple[str, float | None]] = {
    "qwen3": ("Qwen3ForCausalLM", None),
    "qwen3_moe": ("Qwen3MoeForCausalLM", None),
    "llama": ("LlamaForCausalLM", 1e4),
    "mistral": ("MistralForCausalLM", 1e4),
    "mixtral": ("MixtralForCausalLM", 1e6),
}
_DART = "LlamaForCausalLMDart"
_EAGLE3 = "LlamaForCausalLMEagle3"


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """The experts that take an MLP's place.

    Attributes:
      num_experts: E.
      num_experts_per_tok: how many of them a token goes through.
      intermediate_size: width of one expert.
      norm_topk_prob: whether the chosen experts' weights are scaled to sum to 1.
      dense_layers: layers that keep a plain MLP.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.num_experts_per_tok > self.num_experts:
            raise UserError(
                f"config.json sends a token to {self.num_experts_per_tok} of "
                f"{self.num_experts} experts"
            )


@dataclasses.dataclass(frozen=True)
class TargetConfig:
    """A decoder of the Llama family, in the names of its Hugging Face `config.json`.

    Attributes:
      sliding_window: positions that a row may look back; caches are kept within it.
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
        _check_fields(self)
        _check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers whose input is captured for the drafter (docs/method.md, section 1): three; none
        of a target too small to have three different ones."""
        layers = (2, self.num_hidden_layers // 2, self.num_hidden_layers - 3)
        return layers if self.num_hidden_layers >= 7 else ()

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normed head by head."""
        return self.model_type in ("qwen3", "qwen3_moe")

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence: as many as the positions and the sliding window hold."""
        length = max(self.max_position_embeddings, self.rope.reach)
        return min(length, self.sliding_window or length)

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer's MLP is a choice of experts."""
        return self.moe is not None and layer not in self.moe.dense_layers

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> TargetConfig:
        """Reads a Hugging Face config; refuses by name what would change the maths."""
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
        _refuse(json, "attention_bias", (False, None))
        _refuse(json, "mlp_bias", (False, None))
        _refuse(json, "hidden_act", ("silu",))
        _refuse(json, "quantization_config", (None,))
        _refuse(json, "pretraining_tp", (0, 1, None))
        types = json.get("layer_types") or []
        if not isinstance(types, list) or any(t != "full_attention" for t in types):
            raise UserError("target layer_types other than 'full_attention' are not supported")
        fields = _with_head_defaults(json, guess=kind not in ("qwen3",))
        fields["rope"] = Rope.from_json(json, default_theta)
        if kind == "mistral":
            fields.setdefault("sliding_window", 4096)
        elif kind != "mixtral":
            _refuse(json, "use_sliding_window", (False, None))
            fields["sliding_window"] = None  # which configs may name and not use
        fields["moe"] = _moe(json) if kind in ("qwen3_moe", "mixtral") else None
        # Their defaults differ between architectures.
        _require(json, ("rms_norm_eps", "max_position_embeddings"))
        return cls(**_known_fields(cls, fields))

    def to_json(self) -> dict[str, Any]:
        """The config as `transformers` reads it."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftLayerConfig:
    """What DART and EAGLE-3 drafters have in common, in the names of their `config.json`."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    target_hidden_size: int
    rms_norm_eps: float = 1e-6
    rope: Rope = Rope(1e4)  # what a Llama config without one means
    max_position_embeddings: int = 40960

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @classmethod
    def _read(cls, json: Mapping[str, Any]) -> Any:
        _refuse(json, "hidden_act", ("silu",))
        _refuse(json, "attention_bias", (False, None))
        _refuse(json, "mlp_bias", (False, None))
        _refuse(json, "quantization_config", (None,))
        _refuse(json, "norm_before_residual", (False, None))
        fields = _with_head_defaults(json, guess=True)
        fields["rope"] = Rope.from_json(json, 1e4)
        fields.setdefault("draft_vocab_size", fields.get("vocab_size"))
        if fields.get("target_hidden_size") is None:
            fields["target_hidden_size"] = fields.get("hidden_size")
        return cls(**_known_fields(cls, fields))

    def _write(self, architecture: str) -> dict[str, Any]:
        json = {
            "architectures": [architecture],
            "model_type": "llama",
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            **dataclasses.asdict(self),
            **self.rope.to_json(),
        }
        del json["rope"]
        return json


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterConfig(DraftLayerConfig):
    """A DART drafter (docs/method.md, section 2).

    Attributes:
      draft_length: mask rows, m.
      num_hidden_layers: decoder layers; the method's drafters, which the reference reads, have one.
      shifted: whether the last real row predicts too, and each mask row one token further on. The
        paper compares with drafters whose mask rows alone predict; the reference cannot read them.
    """

    draft_length: int
    num_hidden_layers: int = 1
    shifted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.num_positions:
            raise UserError("an unshifted drafter needs mask rows: draft_length must be at least 1")

    @property
    def num_positions(self) -> int:
        """Positions drafted in one forward, d: the mask rows' and, if shifted, the last real
        row's."""
        return self.draft_length + self.shifted

    def shortened(self, positions: int) -> DrafterConfig:
        """The same drafter, of the same parameters, for its first so many positions: no row sees
        the mask rows behind it."""
        return dataclasses.replace(self, draft_length=positions - self.shifted)

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> DrafterConfig:
        """Reads the reference's config; refuses by name what would change the maths."""
        if "draft_length" not in json:
            raise UserError("drafter config.json has no draft_length: it is not a DART drafter")
        return cls._read(json)

    def to_json(self) -> dict[str, Any]:
        """The config as the reference reads it."""
        json = self._write(_DART)
        if self.shifted:
            del json["shifted"]  # as published
        return json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3Config(DraftLayerConfig):
    """An EAGLE-3 drafter (docs/method.md, section 7).

    Attributes:
      aux_layers: layers of the target whose outputs it reads; None where its config is silent,
        which means those of the reference.
    """

    aux_layers: tuple[int, ...] | None = None

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Eagle3Config:
        """Reads the reference's config; refuses by name what would change the maths.

        The method's own checkpoints go by the architecture `LlamaForCausalLM`, and only their
        draft vocabulary tells them from a target.
        """
        if _EAGLE3 not in (json.get("architectures") or []) and "draft_vocab_size" not in json:
            raise UserError(
                f"drafter config.json has neither the architecture {_EAGLE3} nor a "
                "draft_vocab_size: it is not an EAGLE-3 drafter"
            )
        eagle = json.get("eagle_config")
        eagle = eagle if isinstance(eagle, dict) else {}
        _refuse(eagle, "use_aux_hidden_state", (True, None))
        if json.get("num_hidden_layers", 1) != 1:
            raise UserError("EAGLE-3 drafters of more than one layer are not supported")
        layers = eagle.get("eagle_aux_hidden_state_layer_ids")
        if layers is not None and not isinstance(layers, list):
            raise UserError(f"config.json has eagle_aux_hidden_state_layer_ids={layers!r}")
        return cls._read({**json, "aux_layers": None if layers is None else tuple(layers)})

    def to_json(self) -> dict[str, Any]:
        """The config as the reference reads it."""
        json = self._write(_EAGLE3)
        json["num_hidden_layers"] = 1
        layers = json.pop("aux_layers")
        if layers is not None:
            json["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(layers)}
        return json


def is_drafter(json: Mapping[str, Any]) -> bool:
    """Whether this is a DART or EAGLE-3 drafter's config, by its fields."""
    named = {_DART, _EAGLE3} & set(json.get("architectures") or [])
    return bool(named) or "draft_length" in json or "draft_vocab_size" in json


def drafter_config(json: Mapping[str, Any]) -> DrafterConfig | Eagle3Config:
    """Reads the config of either kind of drafter.

    Raises:
      UserError: it is of neither kind, or something in it is not supported.
    """
    if "draft_length" in json:
        return DrafterConfig.from_json(json)
    if _EAGLE3 in (json.get("architectures") or []) or "draft_vocab_size" in json:
        return Eagle3Config.from_json(json)
    raise UserError(
        "drafter config.json has neither a draft_length (DART) nor a draft_vocab_size (EAGLE-3): "
        "it is not a drafter"
    )


def _moe(json: Mapping[str, Any]) -> MoEConfig:
    """The experts of a Qwen3-MoE or Mixtral config."""
    fields: dict[str, Any] = dict(json)
    fields.setdefault("num_experts", json.get("num_local_experts"))
    mixtral = json["model_type"] == "mixtral"
    if mixtral:
        fields.update(moe_intermediate_size=json.get("intermediate_size"))
    names = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_hidden_layers")
    _require(fields, names)
    return MoEConfig(
        num_experts=fields["num_experts"],
        num_experts_per_tok=fields["num_experts_per_tok"],
        intermediate_size=fields["moe_intermediate_size"],
        norm_topk_prob=mixtral or json.get("norm_topk_prob", False),
        dense_layers=() if mixtral else _dense_layers(json),
    )


def _dense_layers(json: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of a Qwen3-MoE model that have no experts."""
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


def _check_fields(config: TargetConfig | DraftLayerConfig | MoEConfig) -> None:
    """Refuses values of a wrong kind or range, which JSON cannot rule out."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        least = 0 if field.name == "draft_length" else 1
        if field.type == "bool":
            good, want = isinstance(value, bool), "true or false"
        elif field.type in ("int", "int | None"):
            good = isinstance(value, int) and not isinstance(value, bool) and value >= least
            good = good or (value is None and field.type == "int | None")
            want = f"an integer of at least {least}"
        elif field.type == "float":
            good = isinstance(value, int | float) and not isinstance(value, bool)
            good = good and 0 < value < float("inf")
            want = "a positive number"
        else:
            continue
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


def _with_head_defaults(json: Mapping[str, Any], *, guess: bool) -> dict[str, Any]:
    """Adds what Llama-like configs may leave out: key/value heads and the head's size."""
    fields = dict(json)
    heads, size = json.get("num_attention_heads"), json.get("hidden_size")
    if guess and isinstance(heads, int) and isinstance(size, int) and heads > 0:
        if fields.get("num_key_value_heads") is None:
            fields["num_key_value_heads"] = heads
        if fields.get("head_dim") is None and size % heads == 0:
            fields["head_dim"] = size // heads
    return fields


def _known_fields(cls: type, json: Mapping[str, Any]) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    _require(json, [f.name for f in fields if f.default is dataclasses.MISSING])
    return {f.name: json[f.name] for f in fields if f.name in json}


def _require(json: Mapping[str, Any], names: Any) -> None:
    missing = [name for name in names if json.get(name, dataclasses.MISSING) is dataclasses.MISSING]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}")
