"""What crosses to the host after every step, in one packed array."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

# Tokens handed over as n-gram context: enough for the highest order, 5.
CONTEXT = 4


@dataclasses.dataclass(frozen=True)
class HostBuffer:
    """The layout of the int32 array [B, width] that crosses to the host after every step.

    Its columns: how many tokens the step won, how many of these were drafted, the tokens (P), the
    context (4), the candidates' ids (d * k) and their logits' bits (d * k).

    Attributes:
      positions: drafted positions, d; 0 where nothing is searched for on the host.
      candidates: candidates a position, k; 0 where the n-gram model drafts alone.
      path: most tokens a step can win, P.
    """

    positions: int
    candidates: int
    path: int

    @property
    def first(self) -> int:
        """Column of the first candidate; the context stands before it."""
        return 2 + self.path + CONTEXT

    @property
    def root(self) -> int:
        """Column of the newest token, the tree's root; -1 in a finished row."""
        return self.first - 1

    def pack(
        self,
        context: jax.Array,
        count: jax.Array,
        drafted: jax.Array,
        active: jax.Array,
        tokens: jax.Array,
        ids: jax.Array,
        logits: jax.Array,
    ) -> jax.Array:
        """On the device: context [B, 4], count, drafted and active [B], tokens [B, P], ids and
        float32 logits [B, d, k] -> int32 [B, width]. A finished row's root becomes -1."""
        b = context.shape[0]
        root = jnp.where(active, context[:, -1], -1)
        bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
        return jnp.concatenate(
            [
                count[:, None],
                drafted[:, None],
                tokens,
                context[:, :-1],
                root[:, None],
                ids.reshape(b, -1),
                bits.reshape(b, -1),
            ],
            axis=1,
        )

    def emitted(self, packed: np.ndarray) -> list[np.ndarray]:
        """The tokens each row won in the step; the first `packed[row, 1]` of them were drafted."""
        return [row[2 : 2 + row[0]] for row in packed]

    def active(self, packed: np.ndarray) -> bool:
        """Whether any row goes on."""
        return bool((packed[:, self.root] >= 0).any())

    def candidates_of(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Context int32 [B, 4], ids int32 [B, d, k] and logits float32 [B, d, k], not copied."""
        shape = (len(packed), self.positions, self.candidates)
        middle = self.first + self.positions * self.candidates
        context = packed[:, self.first - CONTEXT : self.first]
        ids = packed[:, self.first : middle].reshape(shape)
        logits = packed[:, middle:].view(np.float32).reshape(shape)
        return context, ids, logits
