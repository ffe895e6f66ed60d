"""Token windows whose content depends on (seed, step) alone.

So a resumed run needs no data position beyond its step number.
"""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Windows:
    """Random windows of a long token stream.

    Attributes:
      tokens: int [M], documents one after the other.
      batch: windows a step.
      length: tokens a window.
      seed: of the order.
    """

    tokens: np.ndarray
    batch: int
    length: int
    seed: int = 0

    @property
    def fingerprint(self) -> str:
        """Tells other tokens or another order of them."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tokens).data)
        return f"{digest.hexdigest()[:16]} {self.length} {self.seed}"

    def __call__(self, step: int, rows: slice = slice(None)) -> np.ndarray:
        """int32 [batch, length] of one step, or some of its rows.

        The stream is cut at a random phase into windows that are visited once an epoch.
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
