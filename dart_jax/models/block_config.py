"""Configs of block drafters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_json.block_formats import (
    GATES,
    SCALES,
    SPECULATORS,
    BlockLayout,
    block_fields,
    block_layout,
)
from dart_jax.models.config_json.fields import FULL, SLIDING, known_fields
from dart_jax.models.draft_layer_config import OF_WEIGHTS, SHARED, DraftLayerConfig
from dart_jax.models.rope import Rope
from dart_jax.models.traits import Traits

# How the position of the second token scales the r factors of a pair's first one, by a linear layer
# of what the head reads there: 1 + gate, as DART's; not at all, as DSpark's vanilla Markov head; by
# a sigmoid, which reads the first token's factors, too, as its gated one; or gate, as DFlash2's
# selector.
PairGate = Literal["residual", "none", "sigmoid", "linear"]

BlockKind = Literal["DFlash", "DSpark", "DFlash2", "JetSpec"]


def check_unscaled(target: TargetConfig) -> None:
    """Raises UserError if the target scales embeddings or logits: what block drafters' authors do
    for such targets differs."""
    scaled = target.architecture.embedding_scaled or target.embedding_multiplier != 1
    if scaled or target.logits_scaling != 1 or target.final_logit_softcapping is not None:
        raise UserError(
            f"block drafters are not supported for targets that scale embeddings or logits, as "
            f"{target.model_type!r} does; pass a DART or EAGLE-3 drafter"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(DraftLayerConfig):
    """A block drafter: DFlash, DSpark, DFlash2 or JetSpec (docs/method.md, section 8).

    Attributes:
      num_hidden_layers: layers, which are like Qwen3's.
      block_size: rows of a block, the anchor's included.
      mask_token_id: the token of the other rows.
      feature_layers: target layers whose input makes the context, ascending; the input of layer
        i + 1 is the output of layer i, by which files name it.
      num_target_layers: of the target, if the file tells.
      shifted: whether each row predicts the token after its own, so that the anchor does, too, as
        DSpark's; otherwise its own, as DFlash's.
      causal_layers: layers in which no row sees the rows after it.
      sliding_layers: layers with the window.
      conv_group_size: channels that share what a row adds to their factors in convolutions, if
        there are any.
      pair_rank: rank of the pair scores; 0 for none.
      pair_gate: their gate.
      selector_top_k: how many candidates of each position pair scores choose from, by default all
        tokens.
      confidence: what tells how probable it is that a token is accepted: the row, or the row and
        the pair score's factors of the token before. None if nothing does.
      input_embedding_scale: factor on the block's embeddings.
      output_multiplier: factor on the logits.
      final_logit_softcapping: their bound then (`softcap`), if any.
      own_head: whether the drafter has a head of its own, which its weights tell.
      layout: of its `config.json`.
    """

    num_hidden_layers: int
    block_size: int
    mask_token_id: int
    feature_layers: tuple[int, ...]
    num_target_layers: int | None = None
    shifted: bool = False
    causal_layers: tuple[int, ...] = ()
    sliding_layers: tuple[int, ...] = ()
    conv_group_size: int | None = None
    pair_rank: int = 0
    pair_gate: PairGate = "none"
    selector_top_k: int | None = None
    confidence: Literal["hidden", "pairs"] | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    own_head: bool = False
    layout: BlockLayout = "dflash"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.num_positions:
            raise UserError("block_size must be at least 2 where the anchor predicts nothing")
        if self.mask_token_id >= self.vocab_size:
            raise UserError(
                f"config.json has mask_token_id={self.mask_token_id}, but only {self.vocab_size} "
                "tokens"
            )
        group = self.conv_group_size
        if group is not None and self.hidden_size % group:
            raise UserError(
                f"conv_group_size {group} does not divide hidden_size {self.hidden_size}"
            )

    @property
    def num_positions(self) -> int:
        """Drafted positions per forward pass, d."""
        return self.block_size - (not self.shifted)

    @property
    def traits(self) -> Traits:
        return Traits(
            kind=self.kind,
            search="candidates",
            couples=True,
            pairs=self.pair_rank > 0,
            features=True,
        )

    def check_fit(self, target: TargetConfig) -> None:
        check_unscaled(target)
        super().check_fit(target)
        if self.mask_token_id >= target.vocab_size:
            raise UserError(
                f"the drafter's mask_token_id is {self.mask_token_id}, but the target has only "
                f"{target.vocab_size} tokens; pass a drafter trained for this target"
            )

    @property
    def kind(self) -> BlockKind:
        """The member of the family, as its authors call it."""
        if self.conv_group_size is not None or self.selector_top_k is not None:
            return "DFlash2"
        if self.shifted or self.pair_rank:
            return "DSpark"
        every = len(self.causal_layers) == self.num_hidden_layers
        mixed = 0 < len(self.sliding_layers) < self.num_hidden_layers
        return "JetSpec" if every and not mixed else "DFlash"

    def with_window(self, window: int | None) -> Self:
        """As for all drafters."""
        layers = () if window is None else tuple(range(self.num_hidden_layers))
        return dataclasses.replace(self, sliding_window=window, sliding_layers=layers)

    @property
    def decoder(self) -> TargetConfig:
        """The layers, as a target's."""
        names = (*SHARED, "num_hidden_layers", "rope", "sliding_window", "sliding_layers")
        return TargetConfig(**{name: getattr(self, name) for name in names})

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> BlockConfig:
        """Reads a config in any of the layouts.

        Raises:
          UserError: it is none, a field is missing, wrong or unknown, or names an option that is
            not supported.
        """
        layout = block_layout(json)
        if layout is None:
            raise UserError("config.json is not that of a block drafter")
        fields = block_fields(json, layout)
        fields["rope"] = Rope.from_json(fields, 1e4)
        known = known_fields(cls, fields)
        # With a draft vocabulary it has some rows of the target's head, if the file has none.
        own_head = known["draft_vocab_size"] != known["vocab_size"]
        return cls(**known, own_head=own_head)

    def to_json(self) -> dict[str, Any]:
        """Returns the config in its layout.

        Raises:
          UserError: the layout has no place for a field.
        """
        json = self._written()
        read = dataclasses.asdict(type(self).from_json(json))
        # The number of the target's layers is for other programs.
        unread = (*OF_WEIGHTS, "num_target_layers")
        lost = [n for n, v in dataclasses.asdict(self).items() if v != read[n] and n not in unread]
        if lost:
            raise UserError(
                f"the layout {self.layout!r} has no place for {', '.join(lost)} of this drafter; "
                "choose another"
            )
        return json

    def _written(self) -> dict[str, Any]:
        """Returns the config in its layout, whether that has a place for all fields or not."""
        layers, heads = self._layers_json(), self._heads_json()
        if self.layout == "speculators":
            kind = "dspark" if "markov_rank" in heads else "dflash"
            kind = "dflash2" if "selector_rank" in heads else kind
            return {
                "architectures": [SPECULATORS[kind]],
                "speculators_model_type": kind,
                "transformer_layer_config": layers,
                "draft_vocab_size": self.draft_vocab_size,
                "block_size": self.block_size,
                "mask_token_id": self.mask_token_id,
                "aux_hidden_state_layer_ids": [*self.feature_layers],
                "sample_from_anchor": self.shifted,
                "sliding_window_non_causal": True,  # vLLM makes all layers causal if it is false
                "target_hidden_size": self.target_hidden_size,
                **heads,
            }
        ids = {
            "target_layer_ids": [layer - 1 for layer in self.feature_layers],
            "mask_token_id": self.mask_token_id,
        }
        sizes = {"block_size": self.block_size, "num_target_layers": self.num_target_layers}
        json = {**layers, **sizes}
        if self.layout == "deepspec":
            # SGLang and vLLM look for some fields in the object.
            json |= {**ids, "num_anchors": 512, **heads, "dflash_config": ids}
            return {"architectures": ["Qwen3DSparkModel"], **json}
        nested = {**ids, **heads}
        if self.layout == "dflash":
            scales = {name: getattr(self, name) for name in SCALES}
            nested |= {name: value for name, value in scales.items() if value not in (1, None)}
        if self.causal_layers and self.causal_layers != self.sliding_layers:
            # As JetSpec, vLLM and z-lab call it.
            nested["causal_head"] = nested["causal"] = json["is_causal"] = True
        elif not self.causal_layers and self.sliding_layers:
            json["is_causal"] = False
        name = "DFlash2DraftModel" if "selector_rank" in heads else "DFlashDraftModel"
        if self.layout == "specforge":
            name, nested["projector_type"] = "DSparkDraftModel", "dspark"
            mha = self.num_attention_heads == self.num_key_value_heads
            nested["attention_mode"] = "mha" if mha else "gqa"
        if name == "DFlash2DraftModel":
            nested["block_size"] = self.block_size
        return {"architectures": [name], **json, "dflash_config": nested}

    def _layers_json(self) -> dict[str, Any]:
        """Returns the fields of the layers, as Qwen3's config has them."""
        names = (*SHARED, "num_hidden_layers", "sliding_window")
        kinds = [
            SLIDING if i in self.sliding_layers else FULL for i in range(self.num_hidden_layers)
        ]
        return {
            **{name: getattr(self, name) for name in names},
            **self.rope.to_json(),
            "hidden_act": "silu",
            "attention_bias": False,
            "layer_types": kinds,
            "max_window_layers": self.num_hidden_layers,
            "use_sliding_window": bool(self.sliding_layers),
            "tie_word_embeddings": False,
            "model_type": "qwen3",
        }

    def _heads_json(self) -> dict[str, Any]:
        """Returns the fields of pair scores, convolutions and the head of confidence."""
        json: dict[str, Any] = {}
        if self.conv_group_size is not None:
            json |= {"conv_kernel_size": 2, "conv_group_size": self.conv_group_size}
        if self.selector_top_k is not None:
            return {**json, "selector_rank": self.pair_rank, "selector_top_k": self.selector_top_k}
        if not self.shifted and not self.pair_rank:
            return json
        if self.pair_rank:
            gates = {gate: name for name, gate in GATES.items()}
            json["markov_head_type"] = gates.get(self.pair_gate)
        return json | {
            "markov_rank": self.pair_rank,
            "enable_confidence_head": self.confidence is not None,
            "confidence_head_with_markov": self.confidence == "pairs",
        }
