"""How one setting compares with plain decoding."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.decoder import Loop
from dart_jax.decoding.sampling import Sampling
from eval.lossless.divergence import Divergence


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One setting against plain decoding.

    Attributes:
      method: the way of drafting.
      sampling: how the target draws.
      batch_size: prompts decoded together.
      nodes: of the draft trees.
      loop: see `LosslessConfig`.
      prompts: prompts decoded.
      tokens: tokens that plain decoding gave for them.
      steps: verifications.
      divergences: the first difference of every prompt whose outputs are not the same.
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
