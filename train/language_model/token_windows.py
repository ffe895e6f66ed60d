"""Random token windows that depend only on (seed, step).

So a resumed run needs only its step number to find its position in the data.
"""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TokenWindows:
    """Random windows of a long token stream.

    Attributes:
      tokens: int [M], the concatenated documents.
      batch: windows per step.
      length: tokens per window.
      seed: seed of the order.
    """

    tokens: np.ndarray
    batch: int
    length: int
    seed: int = 0

    @property
    def fingerprint(self) -> str:
        """Identifies the tokens and their order."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tokens).data)
        return f"{digest.hexdigest()[:16]} {self.length} {self.seed}"

    def __call__(self, step: int, rows: slice = slice(None)) -> np.ndarray:
        """Returns the windows of one step, int32 [batch, length], or some of its rows.

        Each epoch cuts the stream at a random phase into windows and visits each window once.
        """
        per_epoch = (len(self.tokens) - self.length) // self.length // self.batch
        if per_epoch < 1:
            raise UserError(
                f"{len(self.tokens)} tokens are too few for batches of {self.batch} windows of "
                f"{self.length}"
            )
        epoch, index = divmod(step, per_epoch)
        rng = np.random.default_rng((self.seed, epoch))
        phase = rng.integers(self.length)
        chosen = rng.permutation(per_epoch * self.batch)[index * self.batch :][: self.batch]
        starts = phase + chosen[rows] * self.length
        return self.tokens[starts[:, None] + np.arange(self.length)].astype(np.int32)
