"""The base of drafters' configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_json.drafter_fields import check_options, sliding_window
from dart_jax.models.config_json.fields import (
    SLIDING,
    check_attention,
    check_fields,
    known_fields,
    with_head_defaults,
)
from dart_jax.models.rope import Rope
from dart_jax.models.traits import DraftingConfig

# Layout of files as the authors of DART and EAGLE-3 write them.
REFERENCE = "reference"
# Fields that drafters' configs have in common with targets', except RoPE.
SHARED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings"),
)
# Fields of configs that the files of weights determine.
OF_WEIGHTS = ("own_embedding", "own_head", "qk_norm")


def check_features(target: TargetConfig) -> None:
    """Raises UserError if the target is too small for drafters that read its features."""
    if not target.feature_layers:
        raise UserError(
            f"the target has {target.num_hidden_layers} layers; drafters read the features of "
            "three distinct ones (2, L//2, L-3), so it needs at least 7"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftLayerConfig(DraftingConfig):
    """Fields that all drafters share, named as in their `config.json`.

    Attributes:
      sliding_window: positions that a row sees, its own included, in the layers that have such a
        window, for DART and EAGLE-3 all. None for all positions.
      own_embedding: whether the drafter has an embedding of its own, which its weights tell.
      own_head: whether it has a head of its own.
      pair_rank: rank of the pair scores; 0 for none.
      layout: of its files.
    """

    num_hidden_layers: ClassVar[int]
    norms_all_heads: ClassVar[bool] = False
    own_head: ClassVar[bool] = True
    pair_rank: ClassVar[int] = 0
    layout: ClassVar[str] = REFERENCE

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
    sliding_window: int | None = None
    own_embedding: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        check_attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim)
        self.rope.check(self.head_dim)

    @classmethod
    def for_target(
        cls, target: TargetConfig, draft_vocab_size: int | None = None, **fields: Any
    ) -> Self:
        """Returns the config of a drafter whose layers have the shapes of the target's.

        Args:
          target: the target's config.
          draft_vocab_size: None for the target's whole vocabulary.
          **fields: the subclass's own fields.
        """
        rope = target.rope
        if rope.kind == "longrope" or rope.share != 1:
            rope = Rope(rope.theta)  # the reference, a Llama layer, would ignore the difference
        shared = {name: getattr(target, name) for name in SHARED}
        size = draft_vocab_size or target.vocab_size
        return cls(
            **shared,
            draft_vocab_size=size,
            target_hidden_size=target.hidden_size,
            rope=rope,
            **fields,
        )

    def with_window(self, window: int | None) -> Self:
        return dataclasses.replace(self, sliding_window=window)

    @property
    def shares_embedding(self) -> bool:
        """Returns True if it reads the target's embedding, whose rows are as wide as its own."""
        return not self.own_embedding and self.hidden_size == self.target_hidden_size

    @property
    def _layers(self) -> tuple[int, ...] | None:
        """The layers that the config names, None for the reference's."""
        return getattr(self, "feature_layers", None)

    @property
    def features_width(self) -> int:
        """Numbers of one row of the target's features."""
        return (3 if self._layers is None else len(self._layers)) * self.target_hidden_size

    def layers_read(self, target: TargetConfig) -> tuple[int, ...]:
        if self._layers is None:
            return target.feature_layers
        return self._layers if self._layers[-1] < target.num_hidden_layers else ()

    @property
    def shared_sizes(self) -> dict[str, int]:
        """What devices that share the drafter divide evenly, by name."""
        return {
            "columns of the MLP": self.intermediate_size,
            "tokens of the draft vocabulary": self.draft_vocab_size,
            "features": self.features_width,
        }

    def completed(self, names: Collection[str], path: Path) -> Self:
        """Returns the config, completed by the names of the tensors in the file `path`.

        Raises:
          UserError: the file has more than one layer of a DART or EAGLE-3 drafter.
        """
        later = sorted(name for name in names if name.startswith("layers."))
        if later and self.layout == REFERENCE:
            raise UserError(
                f"{path} has more than one layer ({later[0]}), which is not supported in DART and "
                "EAGLE-3 drafters; pass one of one layer"
            )
        return self

    def check_fit(self, target: TargetConfig) -> None:
        """Raises UserError unless the drafter was trained for a target of these shapes."""
        if self._layers is None:
            check_features(target)
        elif not self.layers_read(target):
            raise UserError(
                f"the drafter reads the inputs of the target's layers {self._layers}, but the "
                f"target has only {target.num_hidden_layers}, from 0 on; pass a drafter trained "
                "for this target"
            )
        if self.target_hidden_size != target.hidden_size:
            raise UserError(
                f"the drafter does not fit the target: hidden_size is {target.hidden_size} in the "
                f"target and {self.target_hidden_size} in the drafter; pass a drafter trained for "
                "this target"
            )

    @classmethod
    def _read(cls, json: Mapping[str, Any], options: Mapping[str, tuple[Any, ...]]) -> Any:
        json = {n: v for n, v in json.items() if n not in OF_WEIGHTS and v is not None}
        check_options(json, options, {field.name for field in dataclasses.fields(cls)})
        fields = with_head_defaults(json)
        fields["rope"] = Rope.from_json(json, 1e4)
        fields["sliding_window"] = sliding_window(json)
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
            "num_hidden_layers": self.num_hidden_layers,
            **dataclasses.asdict(self),
            **self.rope.to_json(),
        }
        for name in ("rope", *OF_WEIGHTS):
            json.pop(name, None)
        if self.sliding_window is None:
            del json["sliding_window"]  # published configs have no such field
        else:  # Llama's layers have a window only if it is said of each
            json["layer_types"] = [SLIDING]
        if self.shares_embedding:
            # A file that names it says to EAGLE's loaders that it brings its own embedding: without
            # one, they would leave theirs random. Published configs have no such field.
            del json["target_hidden_size"]
        return json
