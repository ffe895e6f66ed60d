"""The shapes of trained drafters."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least

if TYPE_CHECKING:
    from dart_jax.models.config import TargetConfig
    from dart_jax.models.drafter_config import AnyDrafterConfig, BlockConfig

# Tokens of a draft vocabulary, as in EAGLE-3: the head over all tokens of a large vocabulary is the
# greater part of a drafter.
_LARGE = 32_000
_BLOCKS = ("dflash", "dspark")
_DSPARK_RANK = 256


@dataclasses.dataclass(frozen=True)
class DrafterShape:
    """The drafter to train."""

    method: Literal["dart", "eagle3", "dflash", "dspark"] = "dart"
    """DART and the block drafters DFlash and DSpark draft all positions in one forward pass;
    EAGLE-3 drafts them sequentially."""
    positions: int = 8
    """Drafted positions to train, d; EAGLE-3 may draft more."""
    layers: int | None = None
    """Decoder layers of a block drafter, by default 2; the others have one."""
    shifted: bool = True
    """Let the anchor predict as well, as DART does. Unshifted drafters, in which only mask rows
    predict, are for comparison."""
    start: Literal["informed", "random"] | None = None
    """First weights of a block drafter: attention to the rows just before, and pair scores by the
    target's mean outputs; or all at random. By default informed."""
    draft_vocab: int | None = None
    """Size of the draft vocabulary, the most frequent tokens of the data; 0 for all tokens. By
    default 32,000 for targets with more than twice as many, otherwise all; for block drafters all,
    with the target's own head."""
    pair_rank: int | None = None
    """Rank of learned scores for pairs of successive tokens, which the drafter's parallel
    predictions lack; 0 for none. DSpark has some, by default of rank 256, the others none. The
    reference cannot load DART's."""
    init: str | None = None
    """Directory or hub repository of a drafter to start from, of the same shape; its draft
    vocabulary, mask token, width and pair scores are kept. If it has no pair scores, --pair-rank
    adds some to DART's drafters."""
    train: Literal["all", "pairs"] = "all"
    """Train the whole drafter, or only the pair scores of the one given by --init."""

    def __post_init__(self) -> None:
        check_least(self, positions=1, layers=1, draft_vocab=0, pair_rank=0)
        method = self.method
        for wrong, told in (
            (method in ("eagle3", "dflash") and self.rank, "--pair-rank is of DART and DSpark"),
            (method != "dart" and self.train == "pairs", "--train pairs is DART's"),
            (method != "dart" and not self.shifted, "--no-shifted is DART's"),
            (not self.block and self.depth > 1, "DART and EAGLE-3 drafters have one layer"),
            (not self.block and self.start is not None, "--start is of block drafters"),
        ):
            if wrong:
                raise UserError(f"{told}; leave it out with --method {method}")
        if self.init is None:
            if self.train == "pairs":
                raise UserError("--train pairs needs the drafter to freeze: pass --init")
        elif self.draft_vocab is not None or self.start is not None:
            raise UserError(
                "--init brings its own weights and draft vocabulary; leave --start and "
                "--draft-vocab out"
            )

    @property
    def block(self) -> bool:
        """Tells whether it is a block drafter."""
        return self.method in _BLOCKS

    @property
    def informed(self) -> bool:
        """Tells whether its first weights are from the target's outputs."""
        return self.block and self.init is None and self.start != "random"

    @property
    def depth(self) -> int:
        """Decoder layers."""
        return self.layers or (2 if self.block else 1)

    @property
    def rank(self) -> int:
        """Rank of the pair scores, 0 for none."""
        if self.pair_rank is not None:
            return self.pair_rank
        return _DSPARK_RANK if self.method == "dspark" else 0

    def vocabulary(self, target: TargetConfig) -> int | None:
        """Returns the size of the draft vocabulary; None for all of the target's tokens."""
        if self.draft_vocab is not None:
            return self.draft_vocab or None
        return _LARGE if target.vocab_size > 2 * _LARGE and not self.block else None

    def config(self, target: TargetConfig, mask_token: int = 0) -> AnyDrafterConfig:
        """Returns the drafter's config, with layers of the target's shapes, and a block
        drafter's mask token."""
        from dart_jax.models.drafter_config import DartConfig, Eagle3Config

        size = self.vocabulary(target)
        if self.method == "eagle3":
            return Eagle3Config.for_target(target, size)
        if self.block:
            return self._block(target, size, mask_token)
        return DartConfig.for_target(
            target,
            size,
            draft_length=self.positions - self.shifted,
            shifted=self.shifted,
            pair_rank=self.rank,
        )

    def _block(self, target: TargetConfig, size: int | None, mask_token: int) -> BlockConfig:
        from dart_jax.models.drafter_config import BlockConfig

        fields: dict[str, Any] = {"layout": "dflash", "block_size": self.positions + 1}
        if self.method == "dspark":
            fields = {"layout": "deepspec", "block_size": self.positions, "shifted": True}
            fields |= {"pair_rank": self.rank, "confidence": "pairs" if self.rank else "hidden"}
        if size is not None:
            fields |= {"layout": "speculators", "own_head": True}
        return BlockConfig.for_target(
            target,
            size,
            num_hidden_layers=self.depth,
            mask_token_id=mask_token,
            feature_layers=target.feature_layers,
            num_target_layers=target.num_hidden_layers,
            **fields,
        )
