"""The host buffer: one packed array with all that a search of draft trees reads."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = TypeVar("Array", np.ndarray, jax.Array)

# Tokens of n-gram context: enough for the highest order, 5.
CONTEXT = 4
DRAWS = 4  # columns that say how the target draws


@dataclasses.dataclass(frozen=True)
class HostBuffer:
    """The layout of the host buffer, int32 [B, width].

    Its columns: the context (4), the candidates' ids (d * k), the bits of their logits (d * k),
    with `pairs` the bits of their pair scores ((d - 1) * k * k) and, with `draws`, how the target
    draws (4): the key of its noise (2), the position of the first draw after the root, and the bits
    of 1 / temperature, 0 in greedy decoding.

    Attributes:
      positions: drafted positions, d; 0 if the host does not search.
      candidates: candidates per position, k; 0 if only the n-gram model drafts.
      draws: whether it says how the target draws.
      pairs: whether it has pair scores.
    """

    positions: int
    candidates: int
    draws: bool = False
    pairs: bool = False

    @property
    def width(self) -> int:
        """Number of columns."""
        size = self.positions * self.candidates
        draws = DRAWS if self.draws else 0
        return CONTEXT + 2 * size + math.prod(self.pairs_shape) + draws

    @property
    def pairs_shape(self) -> tuple[int, int, int]:
        """Shape of a row's pair scores: [d - 1, k, k]; [0, k, k] without any."""
        levels = max(self.positions - 1, 0) if self.pairs else 0
        return levels, self.candidates, self.candidates

    def pack(
        self,
        context: jax.Array,
        active: jax.Array,
        ids: jax.Array | None = None,
        logits: jax.Array | None = None,
        pairs: jax.Array | None = None,
        draws: jax.Array | None = None,
    ) -> jax.Array:
        """Packs the buffer, on the device; the root of a finished row becomes -1.

        Args:
          context: int32 [B, 4].
          active: bool [B].
          ids: int32 [B, d, k]; like all that follows, if the buffer has these columns.
          logits: float32 [B, d, k].
          pairs: float32 [B, d - 1, k, k].
          draws: int32 [B, 4].

        Returns:
          int32 [B, width].
        """
        root = jnp.where(active, context[:, -1], -1)[:, None]
        parts = [
            x.view(jnp.int32).reshape(len(context), -1)
            for x in (ids, logits, pairs, draws)
            if x is not None
        ]
        return jnp.concatenate([context[:, :-1], root, *parts], axis=1)

    def unpack(self, packed: Array) -> tuple[Array, Array, Array, Array]:
        """Returns the context int32 [B, 4], ids int32 [B, d, k], logits float32 [B, d, k], and pair
        scores float32 [B, d - 1, k, k], or [B, 0, k, k] without any. Of numpy's array, views."""
        size = self.positions * self.candidates
        shape = (len(packed), self.positions, self.candidates)
        columns = itertools.accumulate([CONTEXT, size, size, math.prod(self.pairs_shape)])
        ids, logits, pairs = (packed[:, a:b] for a, b in itertools.pairwise(columns))
        return (
            packed[:, :CONTEXT],
            ids.reshape(shape),
            logits.view(np.float32).reshape(shape),
            pairs.view(np.float32).reshape(len(packed), *self.pairs_shape),
        )
