"""The shapes of trained drafters."""

from __future__ import annotations

import dataclasses
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.programs.command_line import check_least

# Tokens of a draft vocabulary, as in EAGLE-3: the head over all tokens of a large vocabulary is the
# greater part of a drafter.
_LARGE = 32_000


@dataclasses.dataclass(frozen=True)
class DrafterShape:
    """The drafter to train."""

    method: Literal["dart", "eagle3"] = "dart"
    """DART drafts all positions in one forward pass; EAGLE-3 drafts them sequentially."""
    positions: int = 8
    """Drafted positions to train, d; EAGLE-3 may draft more."""
    layers: int = 1
    """Decoder layers; the reference supports only one."""
    shifted: bool = True
    """Let the anchor predict as well, as DART does. Unshifted drafters, in which only mask rows
    predict, are for comparison."""
    draft_vocab: int | None = None
    """Size of the draft vocabulary, the most frequent tokens of the data; 0 for all tokens. By
    default 32,000 for targets with more than twice as many, otherwise all."""
    pair_rank: int = 0
    """Rank of learned scores for pairs of successive tokens, which the drafter's parallel
    predictions lack; 0 for none. The reference cannot load them."""
    init: str | None = None
    """Directory or hub repository of a drafter to start from, of the same shape; its draft
    vocabulary and pair scores are kept. If it has no pair scores, --pair-rank adds some."""
    train: Literal["all", "pairs"] = "all"
    """Train the whole drafter, or only the pair scores of the one given by --init."""

    def __post_init__(self) -> None:
        if self.draft_vocab is not None and self.draft_vocab < 0:
            raise UserError("--draft-vocab must be 0, for all tokens, or more")
        check_least(self, positions=1, layers=1)
        if self.pair_rank < 0:
            raise UserError("--pair-rank must be 0, for no pair scores, or more")
        if self.method == "eagle3" and (self.pair_rank or self.train == "pairs"):
            raise UserError("--pair-rank and --train pairs are DART's; leave them out with eagle3")
        if self.train == "pairs" and self.init is None:
            raise UserError("--train pairs needs the drafter to freeze: pass --init")
        if self.init is not None and self.draft_vocab is not None:
            raise UserError("--init brings its own draft vocabulary; leave --draft-vocab out")
        if self.method == "eagle3" and (self.layers > 1 or not self.shifted):
            raise UserError("--layers and --no-shifted are DART's; leave them out with eagle3")

    def vocabulary(self, target: TargetConfig) -> int | None:
        """Returns the size of the draft vocabulary; None for all of the target's tokens."""
        if self.draft_vocab is not None:
            return self.draft_vocab or None
        return _LARGE if target.vocab_size > 2 * _LARGE else None

    def config(self, target: TargetConfig) -> DrafterConfig | Eagle3Config:
        """Returns the drafter's config; its layers have the shapes of the target's."""
        if self.method == "eagle3":
            return Eagle3Config.for_target(target, self.vocabulary(target))
        return DrafterConfig.for_target(
            target,
            self.vocabulary(target),
            draft_length=self.positions - self.shifted,
            num_hidden_layers=self.layers,
            shifted=self.shifted,
            pair_rank=self.pair_rank,
        )
