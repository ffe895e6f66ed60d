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
        return self._bounds[-1] + (DRAWS if self.draws else 0)

    @property
    def _bounds(self) -> tuple[int, int, int, int]:
        """The columns where ids, logits and pair scores begin, and where these end."""
        size = self.positions * self.candidates
        pairs = CONTEXT + 2 * size
        return CONTEXT, CONTEXT + size, pairs, pairs + math.prod(self.pairs_shape)

    @property
    def pairs_shape(self) -> tuple[int, int, int]:
        """Shape of a row's pair scores: [d - 1, k, k]; [0, k, k] without any."""
        levels = max(self.positions - 1, 0) if self.pairs else 0
        return levels, self.candidates, self.candidates

    def pack(
        self,
        context: jax.Array,
        active: jax.Array,
        ids: jax.Array,
        logits: jax.Array,
        pairs: jax.Array | None = None,
        draws: jax.Array | None = None,
    ) -> jax.Array:
        """Packs the buffer, on the device; the root of a finished row becomes -1.

        Args:
          context: int32 [B, 4].
          active: bool [B].
          ids: int32 [B, d, k].
          logits: float32 [B, d, k].
          pairs: float32 [B, d - 1, k, k], if the buffer has these columns.
          draws: int32 [B, 4], if the buffer has these columns.

        Returns:
          int32 [B, width].
        """
        b = context.shape[0]
        root = jnp.where(active, context[:, -1], -1)

        def bits(x: jax.Array) -> jax.Array:
            return jax.lax.bitcast_convert_type(x, jnp.int32).reshape(b, -1)

        parts = [
            context[:, :-1],
            root[:, None],
            ids.reshape(b, -1),
            bits(logits),
        ]
        if self.pairs:
            assert pairs is not None
            parts.append(bits(pairs))
        if self.draws:
            assert draws is not None
            parts.append(draws)
        return jnp.concatenate(parts, axis=1)

    def candidates_of(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of the context int32 [B, 4], ids int32 [B, d, k] and logits float32 [B, d, k]."""
        shape = (len(packed), self.positions, self.candidates)
        first, middle, end, _ = self._bounds
        ids = packed[:, first:middle].reshape(shape)
        logits = packed[:, middle:end].view(np.float32).reshape(shape)
        return packed[:, :CONTEXT], ids, logits

    def pairs_of(self, packed: np.ndarray) -> np.ndarray:
        """A view of the pair scores, float32 [B, d - 1, k, k]; [B, 0, k, k] without any."""
        shape = self.pairs_shape
        *_, start, end = self._bounds
        return packed[:, start:end].view(np.float32).reshape(len(packed), *shape)

    def unpack(self, packed: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """On the device: the context int32 [B, 4], ids int32 [B, d, k], logits float32 [B, d, k],
        and pair scores float32 [B, d - 1, k, k], None without these columns."""
        batch, shape = packed.shape[0], (self.positions, self.candidates)
        ids, logits, pairs = (packed[:, a:b] for a, b in itertools.pairwise(self._bounds))

        def floats(bits: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return jax.lax.bitcast_convert_type(bits, jnp.float32).reshape(batch, *shape)

        return (
            packed[:, :CONTEXT],
            ids.reshape(batch, *shape),
            floats(logits, shape),
            floats(pairs, self.pairs_shape) if self.pairs else None,
        )
