"""Options of the evaluation during training."""

from __future__ import annotations

import dataclasses

from dart_jax.programs.command_line import check_least


@dataclasses.dataclass(frozen=True)
class AcceptanceConfig:
    """Evaluation of the drafter during training, on held-out documents."""

    eval_rows: int = 16
    """Rows on which the drafter's predictions are compared with the target's."""
    eval_prompts: int = 8
    """Prompts decoded greedily to measure the acceptance length; 0 disables it."""
    eval_new_tokens: int = 64
    """Tokens decoded per prompt."""
    ngram: str | None = None
    """N-gram file for the tree search, as for `generate`; decoding is measured with and
    without it."""
    ngram_weight: float = 0.5
    """Weight of the n-gram model in that search; 0.5 in the paper."""

    def __post_init__(self) -> None:
        check_least(self, eval_rows=0, eval_prompts=0, eval_new_tokens=2, ngram_weight=0)
