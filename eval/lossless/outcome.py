"""Result of comparing one setting with plain decoding."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.decoder import Loop
from dart_jax.decoding.sampling import Sampling
from eval.lossless.divergence import Divergence


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One setting compared with plain decoding.

    Attributes:
      method: drafting method.
      sampling: sampling parameters.
      batch_size: prompts decoded together.
      nodes: nodes of the draft trees; 0 for changing sizes.
      loop: see `LosslessConfig`.
      prompts: number of prompts.
      tokens: tokens that plain decoding generated for them.
      steps: number of verifications.
      divergences: the first difference of every prompt whose outputs differ.
    """

    method: str
    sampling: Sampling
    batch_size: int
    nodes: int
    loop: Loop
    prompts: int
    tokens: int
    steps: int
    divergences: list[Divergence]

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus token included."""
        return (self.tokens - self.prompts) / max(1, self.steps)
