"""DART and EAGLE-3 drafter configs, read from the `config.json` next to the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_fields import (
    check_attention,
    check_fields,
    known_fields,
    refuse,
    with_head_defaults,
)
from dart_jax.models.rope import Rope

_DART = "LlamaForCausalLMDart"
_EAGLE3 = "LlamaForCausalLMEagle3"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftLayerConfig:
    """Fields that DART and EAGLE-3 drafters share, named as in their `config.json`."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    target_hidden_size: int
    rms_norm_eps: float = 1e-6
    rope: Rope = Rope(1e4)  # the default of Llama configs
    max_position_embeddings: int = 40960

    def __post_init__(self) -> None:
        check_fields(self)
        check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)
        self.rope.check(self.head_dim)

    @classmethod
    def for_target(
        cls, target: TargetConfig, draft_vocab_size: int | None = None, **fields: Any
    ) -> Self:
        """The config of a drafter whose layers have the shapes of the target's.

        Args:
          target: the target's config.
          draft_vocab_size: None for the target's whole vocabulary.
          **fields: the subclass's own fields.
        """
        rope = target.rope
        if rope.kind == "longrope" or rope.share != 1:
            rope = Rope(rope.theta)  # the reference, a Llama layer, would ignore the difference
        return cls(
            vocab_size=target.vocab_size,
            draft_vocab_size=draft_vocab_size or target.vocab_size,
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_attention_heads=target.num_attention_heads,
            num_key_value_heads=target.num_key_value_heads,
            head_dim=target.head_dim,
            target_hidden_size=target.hidden_size,
            rms_norm_eps=target.rms_norm_eps,
            rope=rope,
            max_position_embeddings=target.max_position_embeddings,
            **fields,
        )

    @property
    def shares_embedding(self) -> bool:
        """Whether rows are as wide as the target's, so that the drafter reads its embedding."""
        return self.hidden_size == self.target_hidden_size

    @classmethod
    def _read(cls, json: Mapping[str, Any]) -> Any:
        refuse(json, "hidden_act", ("silu",))
        refuse(json, "attention_bias", (False, None))
        refuse(json, "mlp_bias", (False, None))
        refuse(json, "quantization_config", (None,))
        refuse(json, "norm_before_residual", (False, None))
        fields = with_head_defaults(json, guess=True)
        fields["rope"] = Rope.from_json(json, 1e4)
        fields.setdefault("draft_vocab_size", fields.get("vocab_size"))
        if fields.get("target_hidden_size") is None:
            fields["target_hidden_size"] = fields.get("hidden_size")
        return cls(**known_fields(cls, fields))

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
        if self.shares_embedding:
            # A file that names it says to EAGLE's loaders that it brings its own embedding: without
            # one, they would leave theirs random. Published configs have no such field.
            del json["target_hidden_size"]
        return json


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterConfig(DraftLayerConfig):
    """A DART drafter (docs/method.md, section 2).

    Attributes:
      draft_length: mask rows, m.
      num_hidden_layers: decoder layers; published drafters have one, and the reference reads only
        those.
      shifted: whether the anchor predicts too, so that each mask row predicts one token further.
        The paper's ablation compares with unshifted drafters, where only the mask rows predict;
        the reference cannot read them.
      pair_rank: rank of the learned pair scores (see `models.pair_scores`); 0 for none, as in all
        published drafters.
    """

    draft_length: int
    num_hidden_layers: int = 1
    shifted: bool = True
    pair_rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.num_positions:
            raise UserError("an unshifted drafter needs mask rows: draft_length must be at least 1")

    @property
    def num_positions(self) -> int:
        """Drafted positions per forward pass, d: one per mask row and, if shifted, one for the
        anchor."""
        return self.draft_length + self.shifted

    def shortened(self, positions: int) -> DrafterConfig:
        """Returns the config of the same drafter, with the same parameters, for its first
        `positions` drafted positions. Possible because no row sees the mask rows after it."""
        return dataclasses.replace(self, draft_length=positions - self.shifted)

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> DrafterConfig:
        """Reads the reference's config.

        Raises:
          UserError: it is not a DART drafter's, a field is missing or wrong, or names an
            unsupported option that would change the computation.
        """
        if "draft_length" not in json:
            raise UserError("drafter config.json has no draft_length: it is not a DART drafter")
        return cls._read(json)

    def to_json(self) -> dict[str, Any]:
        """Returns the config in the form that the reference reads."""
        json = self._write(_DART)
        if self.shifted:
            del json["shifted"]  # published configs have no such field
        if not self.pair_rank:
            del json["pair_rank"]  # nor this one
        return json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3Config(DraftLayerConfig):
    """An EAGLE-3 drafter (docs/method.md, section 7).

    Attributes:
      aux_layers: target layers whose outputs it reads; None if its config does not name them,
        which means the reference's layers.
    """

    aux_layers: tuple[int, ...] | None = None

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Eagle3Config:
        """Reads the reference's config.

        The authors' checkpoints have the architecture `LlamaForCausalLM`; only their draft
        vocabulary distinguishes them from a target.

        Raises:
          UserError: it is not an EAGLE-3 drafter's, a field is missing or wrong, or names an
            unsupported option that would change the computation.
        """
        if _EAGLE3 not in (json.get("architectures") or []) and "draft_vocab_size" not in json:
            raise UserError(
                f"drafter config.json has neither the architecture {_EAGLE3} nor a "
                "draft_vocab_size: it is not an EAGLE-3 drafter"
            )
        eagle = json.get("eagle_config")
        eagle = eagle if isinstance(eagle, dict) else {}
        refuse(eagle, "use_aux_hidden_state", (True, None))
        if json.get("num_hidden_layers", 1) != 1:
            raise UserError("EAGLE-3 drafters of more than one layer are not supported")
        layers = eagle.get("eagle_aux_hidden_state_layer_ids")
        if layers is not None and not isinstance(layers, list):
            raise UserError(f"config.json has eagle_aux_hidden_state_layer_ids={layers!r}")
        return cls._read({**json, "aux_layers": None if layers is None else tuple(layers)})

    def to_json(self) -> dict[str, Any]:
        """Returns the config in the form that the reference reads."""
        json = self._write(_EAGLE3)
        json["num_hidden_layers"] = 1
        layers = json.pop("aux_layers")
        if layers is not None:
            json["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(layers)}
        return json


def is_drafter(json: Mapping[str, Any]) -> bool:
    """Whether this looks like the config of a DART or EAGLE-3 drafter, judging by its fields."""
    named = {_DART, _EAGLE3} & set(json.get("architectures") or [])
    return bool(named) or "draft_length" in json or "draft_vocab_size" in json


def drafter_config(json: Mapping[str, Any]) -> DrafterConfig | Eagle3Config:
    """Reads the config of a DART or EAGLE-3 drafter.

    Raises:
      UserError: it is neither, or something in it is not supported.
    """
    if "draft_length" in json:
        return DrafterConfig.from_json(json)
    if _EAGLE3 in (json.get("architectures") or []) or "draft_vocab_size" in json:
        return Eagle3Config.from_json(json)
    raise UserError(
        "drafter config.json has neither a draft_length (DART) nor a draft_vocab_size (EAGLE-3): "
        "it is not a drafter"
    )
