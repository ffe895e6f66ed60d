"""Configs of drafters, read from the `config.json` next to the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_json.block_formats import (
    BlockLayout,
    block_fields,
    block_json,
    block_layout,
)
from dart_jax.models.config_json.drafter_fields import (
    DART_OPTIONS,
    EAGLE3_OPTIONS,
    LAYERS,
    NORMS,
    check_options,
    feature_layers,
    sliding_window,
)
from dart_jax.models.config_json.drafter_formats import (
    DART,
    EAGLE3,
    EAGLE3_CLASSES,
    classes,
    known_format,
)
from dart_jax.models.config_json.fields import (
    SLIDING,
    check_attention,
    check_fields,
    known_fields,
    refuse,
    with_head_defaults,
)
from dart_jax.models.rope import Rope

# How the position of the second token scales the r factors of a pair's first one, by a linear layer
# of what the head reads there: 1 + gate, as DART's; not at all, as DSpark's vanilla Markov head; by
# a sigmoid, which reads the first token's factors, too, as its gated one; or gate, as DFlash2's
# selector.
PairGate = Literal["residual", "none", "sigmoid", "linear"]

BlockKind = Literal["DFlash", "DSpark", "DFlash2", "JetSpec"]

# Fields of the configs here that the files of weights determine.
_OF_WEIGHTS = ("own_embedding", "own_head", "qk_norm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftLayerConfig:
    """Fields that all drafters share, named as in their `config.json`.

    Attributes:
      sliding_window: positions that a row sees, its own included, in the layers that have such a
        window, for DART and EAGLE-3 all; None for all positions.
      own_embedding: whether the drafter has an embedding of its own, which its weights tell.
    """

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

    def with_window(self, window: int | None) -> Self:
        """Returns the config of the same drafter with a window in all layers; None for none."""
        return dataclasses.replace(self, sliding_window=window)

    @property
    def shares_embedding(self) -> bool:
        """Tells whether it reads the target's embedding, whose rows are as wide as its own."""
        return not self.own_embedding and self.hidden_size == self.target_hidden_size

    @property
    def features_width(self) -> int:
        """Numbers of one row of the target's features."""
        return 3 * self.target_hidden_size

    def layers_read(self, target: TargetConfig) -> tuple[int, ...]:
        """The target's layers whose input the drafter reads, ascending; empty if the target is too
        small to have them."""
        return target.feature_layers

    @classmethod
    def _read(cls, json: Mapping[str, Any], options: Mapping[str, tuple[Any, ...]]) -> Any:
        json = {n: v for n, v in json.items() if n not in _OF_WEIGHTS and v is not None}
        check_options(json, options, {field.name for field in dataclasses.fields(cls)})
        fields = with_head_defaults(json, guess=True)
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
            **dataclasses.asdict(self),
            **self.rope.to_json(),
        }
        for name in ("rope", *_OF_WEIGHTS):
            json.pop(name, None)
        if self.sliding_window is None:
            del json["sliding_window"]  # published configs have no such field
        else:  # Llama's layers have a window only if it is said of each
            json["layer_types"] = json.get("num_hidden_layers", 1) * [SLIDING]
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
      feature_layers: target layers whose input it reads, ascending; None for the reference's.
      norm_before_residual: whether the residual stream, too, begins with the normalised hidden
        state.
      norm_output: whether it is the final norm of the layer's output that is fed back (EAGLE-3.1).
      norm_before_fc: whether all features of a row are normalised together.
      fc_norm: whether the features of each layer are normalised (EAGLE-3.1).
      qk_norm: whether each head's queries and keys are normalised, as in Qwen3, which its weights
        tell.
    """

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
    def features_width(self) -> int:
        """As for all drafters."""
        layers = 3 if self.feature_layers is None else len(self.feature_layers)
        return layers * self.target_hidden_size

    def layers_read(self, target: TargetConfig) -> tuple[int, ...]:
        """As for all drafters."""
        if self.feature_layers is None:
            return target.feature_layers
        return self.feature_layers if self.feature_layers[-1] < target.num_hidden_layers else ()

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
        json["num_hidden_layers"] = 1
        for name in NORMS:
            if not json[name]:
                del json[name]  # published configs have no such field
        layers = json.pop("feature_layers")
        if layers is not None:
            json[LAYERS] = list(layers)
            if layers[0] > 0:  # where other programs look for them
                json["eagle_config"] = {LAYERS: [layer - 1 for layer in layers]}
        return json


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(DraftLayerConfig):
    """A block drafter: DFlash, DSpark, DFlash2 or JetSpec (docs/method.md, section 8).

    Attributes:
      num_hidden_layers: layers, which are like Qwen3's.
      block_size: rows of a block, the anchor's included.
      mask_token_id: the token of the other rows.
      feature_layers: target layers whose input makes the context, ascending; the input of layer
        i + 1 is the output of layer i, by which files name it.
      num_target_layers: of the target; None if the file does not tell.
      shifted: whether each row predicts the token after its own, so that the anchor does, too, as
        DSpark's; otherwise its own, as DFlash's.
      causal_layers: layers in which no row sees the rows after it.
      sliding_layers: layers with the window.
      conv_group_size: channels that share what a row adds to their factors in convolutions; None
        without convolutions.
      pair_rank: rank of the pair scores; 0 for none.
      pair_gate: their gate.
      selector_top_k: how many candidates of each position pair scores choose from; None for all
        tokens.
      confidence: what tells how probable it is that a token is accepted: the row, or the row and
        the pair score's factors of the token before; None if nothing does.
      input_embedding_scale: factor on the block's embeddings.
      output_multiplier: factor on the logits.
      final_logit_softcapping: their bound then (`softcap`); None for none.
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
    def features_width(self) -> int:
        """As for all drafters."""
        return len(self.feature_layers) * self.target_hidden_size

    def layers_read(self, target: TargetConfig) -> tuple[int, ...]:
        """As for all drafters."""
        return self.feature_layers if self.feature_layers[-1] < target.num_hidden_layers else ()

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
        """The layers, as those of a target."""
        return TargetConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            rope=self.rope,
            max_position_embeddings=self.max_position_embeddings,
            sliding_window=self.sliding_window,
            sliding_layers=self.sliding_layers,
        )

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
        decoder = self.decoder
        names = (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
            *("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"),
            "max_position_embeddings",
        )
        layers = {name: getattr(decoder, name) for name in names} | self.rope.to_json()
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        json = block_json({**fields, "decoder": layers})
        read = type(self).from_json(json)
        # The number of the target's layers is for other programs.
        lost = [n for n in fields if getattr(read, n) != fields[n] and n != "num_target_layers"]
        if lost := [name for name in lost if name not in _OF_WEIGHTS]:
            raise UserError(
                f"the layout {self.layout!r} has no place for {', '.join(lost)} of this drafter; "
                "choose another"
            )
        return json


# Drafters that predict all positions at once, so that a search builds trees from their candidates.
ParallelConfig = DrafterConfig | BlockConfig
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
        return DrafterConfig.from_json(json)
    if {*EAGLE3_CLASSES} & classes(json) or "draft_vocab_size" in json:
        return Eagle3Config.from_json(json)
    raise UserError(
        "drafter config.json has neither a draft_length (DART) nor a draft_vocab_size (EAGLE-3), "
        "nor an architecture of block drafters (DFlashDraftModel and others): it is not a drafter"
    )
