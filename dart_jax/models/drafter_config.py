"""Configs of drafters, read from the `config.json` next to the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from dart_jax.errors import UserError
from dart_jax.models.block_config import BlockConfig
from dart_jax.models.config_json.block_formats import block_layout
from dart_jax.models.config_json.drafter_fields import (
    DART_OPTIONS,
    EAGLE3_OPTIONS,
    LAYERS,
    NORMS,
    feature_layers,
)
from dart_jax.models.config_json.drafter_formats import (
    DART,
    EAGLE3,
    EAGLE3_CLASSES,
    classes,
    known_format,
)
from dart_jax.models.config_json.fields import refuse
from dart_jax.models.draft_layer_config import DraftLayerConfig
from dart_jax.models.traits import Traits


@dataclasses.dataclass(frozen=True, kw_only=True)
class DartConfig(DraftLayerConfig):
    """A DART drafter (docs/method.md, section 2).

    Attributes:
      draft_length: mask rows, m.
      shifted: whether the anchor predicts too, so that each mask row predicts one token further.
        The paper's ablation compares with unshifted drafters, where only the mask rows predict;
        the reference cannot read them.
      pair_rank: rank of the learned pair scores (see `models.networks.pairs`); 0 for none,
        as in all published drafters.
    """

    num_hidden_layers: ClassVar[int] = 1

    draft_length: int
    shifted: bool = True
    pair_rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.num_positions:
            raise UserError("an unshifted drafter needs mask rows: draft_length must be at least 1")

    @property
    def traits(self) -> Traits:
        return Traits(
            kind="DART",
            title="DART with pair scores" if self.pair_rank else "",
            search="candidates",
            couples=True,
            pairs=self.pair_rank > 0,
            features=True,
        )

    @property
    def pairs_apart(self) -> bool:
        """The reference does not read them; see the base class."""
        return self.pair_rank > 0

    def without_pairs(self) -> DartConfig:
        return dataclasses.replace(self, pair_rank=0)

    @property
    def num_positions(self) -> int:
        """Drafted positions per forward pass, d: one per mask row and, if shifted, one for the
        anchor."""
        return self.draft_length + self.shifted

    def shortened(self, positions: int) -> DartConfig:
        """Returns the config of the same drafter, with the same parameters, for its first
        `positions` drafted positions. Possible because no row sees the mask rows after it."""
        return dataclasses.replace(self, draft_length=positions - self.shifted)

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> DartConfig:
        """Reads the reference's config.

        Raises:
          UserError: it is not a DART drafter's, a field is missing or wrong, or names an
            unsupported option that would change the computation.
        """
        if "draft_length" not in json:
            raise UserError("drafter config.json has no draft_length: it is not a DART drafter")
        return cls._read(json, DART_OPTIONS)

    def to_json(self) -> dict[str, Any]:
        """Returns the config in the form that the reference reads."""
        json = self._write(DART)
        if self.shifted:
            del json["shifted"]  # published configs have no such field
        if not self.pair_rank:
            del json["pair_rank"]  # nor this one
        return json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3Config(DraftLayerConfig):
    """An EAGLE-3 drafter (docs/method.md, section 7).

    Attributes:
      feature_layers: target layers whose input it reads, ascending; by default the reference's.
      norm_before_residual: whether the residual stream, too, begins with the normalised hidden
        state.
      norm_output: whether it is the final norm of the layer's output that is fed back (EAGLE-3.1).
      norm_before_fc: whether all features of a row are normalised together.
      fc_norm: whether the features of each layer are normalised (EAGLE-3.1).
      qk_norm: whether each head's queries and keys are normalised, as in Qwen3, which its weights
        tell.
    """

    num_hidden_layers: ClassVar[int] = 1

    feature_layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm_before_fc and self.fc_norm:
            raise UserError(
                "config.json has both norm_before_fc and fc_norm; leave out the one that the file "
                "has no weights of (input_norm.weight, or fc_norm.0.weight and so on)"
            )

    @property
    def traits(self) -> Traits:
        """See the base class; the reference's 60 nodes include the root."""
        return Traits(kind="EAGLE-3", sequential=True, couples=True, nodes=59, features=True)

    def completed(self, names: Collection[str], path: Path) -> Eagle3Config:
        """Has norms of queries and keys if the file has; see the base class."""
        norms = "midlayer.self_attn.q_norm.weight" in names
        return dataclasses.replace(super().completed(names, path), qk_norm=norms)

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Eagle3Config:
        """Reads the config of the reference, SpecForge, vLLM or ModelOpt.

        The authors' checkpoints have the architecture `LlamaForCausalLM`; only their draft
        vocabulary distinguishes them from a target.

        Raises:
          UserError: it is not an EAGLE-3 drafter's, a field is missing or wrong, or names an
            unsupported option that would change the computation.
        """
        if not {*EAGLE3_CLASSES} & classes(json):
            if "draft_vocab_size" not in json:
                raise UserError(
                    f"drafter config.json has neither the architecture {EAGLE3} nor a "
                    "draft_vocab_size: it is not an EAGLE-3 drafter"
                )
            refuse(json, "model_type", ("llama", "mistral", "qwen2", "qwen3", None))
        return cls._read({**json, "feature_layers": feature_layers(json)}, EAGLE3_OPTIONS)

    def to_json(self) -> dict[str, Any]:
        """Returns the config in the form that the reference reads."""
        json = self._write(EAGLE3)
        for name in NORMS:
            if not json[name]:
                del json[name]  # published configs have no such field
        layers = json.pop("feature_layers")
        if layers is not None:
            json[LAYERS] = list(layers)
            if layers[0] > 0:  # where other programs look for them
                json["eagle_config"] = {LAYERS: [layer - 1 for layer in layers]}
        return json


# Drafters that predict all positions at once, so that a search builds trees from their candidates.
ParallelConfig = DartConfig | BlockConfig
AnyDrafterConfig = ParallelConfig | Eagle3Config


def drafter_config(json: Mapping[str, Any]) -> AnyDrafterConfig:
    """Reads the config of a drafter.

    Raises:
      UserError: it is none, or something in it is not supported.
    """
    if block_layout(json) is not None:
        return BlockConfig.from_json(json)
    json = known_format(json)
    if "draft_length" in json:
        return DartConfig.from_json(json)
    if {*EAGLE3_CLASSES} & classes(json) or "draft_vocab_size" in json:
        return Eagle3Config.from_json(json)
    raise UserError(
        "drafter config.json has neither a draft_length (DART) nor a draft_vocab_size (EAGLE-3), "
        "nor an architecture of block drafters (DFlashDraftModel and others): it is not a drafter"
    )
