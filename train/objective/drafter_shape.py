"""The shapes of drafters that are trained."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config


@dataclasses.dataclass(frozen=True)
class DrafterShape:
    """What is trained."""

    method: Literal["dart", "eagle3"] = "dart"
    """DART drafts all positions in one forward; EAGLE-3 one after the other."""
    positions: int = 8
    """Positions that are learned, d; EAGLE-3 may draft further."""
    layers: int = 1
    """Decoder layers; the reference reads one alone."""
    shifted: bool = True
    """Let the last real row predict as well, as DART does. Unshifted drafters, whose mask rows
    alone predict, are for comparison."""
    draft_vocab: int | None = None
    """Tokens that it may propose, the most frequent of the data; all without it."""
    head: Literal["target", "random"] = "target"
    """What its head starts as: the target's own, or random."""
    init: str | None = None
    """Directory or hub repository of a drafter to start from, of the same shape; with its draft
    vocabulary."""

    def __post_init__(self) -> None:
        if self.positions < 1 or self.layers < 1:
            raise UserError("--positions and --layers must be at least 1")
        if self.init is not None and self.draft_vocab is not None:
            raise UserError("--init brings its own draft vocabulary; leave --draft-vocab out")
        if self.method == "eagle3" and (self.layers > 1 or not self.shifted):
            raise UserError("--layers and --no-shifted are DART's; leave them out with eagle3")

    def config(self, target: TargetConfig) -> DrafterConfig | Eagle3Config:
        """The drafter's config: its layers are shaped as the target's."""
        shape: dict[str, Any] = {
            "vocab_size": target.vocab_size,
            "draft_vocab_size": self.draft_vocab or target.vocab_size,
            "hidden_size": target.hidden_size,
            "intermediate_size": target.intermediate_size,
            "num_attention_heads": target.num_attention_heads,
            "num_key_value_heads": target.num_key_value_heads,
            "head_dim": target.head_dim,
            "target_hidden_size": target.hidden_size,
            "rms_norm_eps": target.rms_norm_eps,
            "rope": target.rope,
            "max_position_embeddings": target.max_position_embeddings,
        }
        if self.method == "eagle3":
            return Eagle3Config(**shape)
        return DrafterConfig(
            **shape,
            draft_length=self.positions - self.shifted,
            num_hidden_layers=self.layers,
            shifted=self.shifted,
        )
