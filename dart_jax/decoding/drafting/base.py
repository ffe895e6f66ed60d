"""What every way of drafting has in common."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax

from dart_jax.decoding.sampling import SamplingValues
from dart_jax.models.target import Target


class DraftInput(NamedTuple):
    """What there is to draft from: P rows that the drafter has not seen, and what stands around.

    Attributes:
      target: bound to its parameters.
      params: see `dart_jax.decoding.state.DecodeParams`.
      tokens: int32 [B, P], the rows' own tokens.
      following: int32 [B, P], the tokens *after* them; that of the last real row is the newest
        known token, the next tree's root.
      features: [B, P, 3D], the target's; [B, P, 0] of a target without.
      positions: int32 [B, P].
      last: int32 [B], index of the last real row; those behind it are padding.
      start: int32 [B], rows known before these.
      capacity: rows that a cache must have; static.
      seed: uint32 scalar, of the target's draws.
      sampling: how the target draws.
      seen: bool [B, V], tokens known so far; None without a repetition penalty.
    """

    target: Target
    params: Any
    tokens: jax.Array
    following: jax.Array
    features: jax.Array
    positions: jax.Array
    last: jax.Array
    start: jax.Array
    capacity: int
    seed: jax.Array
    sampling: SamplingValues
    seen: jax.Array | None


class Proposal(NamedTuple):
    """What a draft comes to: a tree, or what the host's search makes one of.

    Attributes:
      trees: int32 [B, 3, N + 1], packed (see `dart_jax.decoding.tree`); None where the host makes them.
      candidates: int32 ids and float32 logits [B, d, k] for the host's search; None for none.
    """

    trees: jax.Array | None = None
    candidates: tuple[jax.Array, jax.Array] | None = None


class DraftingMethod(abc.ABC):
    """A way of drafting trees of N nodes: a frozen dataclass, part of what a step is compiled for.

    Attributes:
      nodes: tree nodes without the root, N.
    """

    nodes: int

    @property
    def depth(self) -> int:
        """Deepest level of a tree; here all its nodes may stand in one line."""
        return self.nodes

    @property
    def searches(self) -> bool:
        """Whether trees come from the host's search."""
        return False

    @property
    def positions(self) -> int:
        """Positions that the host's search goes through, d: none behind the deepest level."""
        return self.depth if self.searches else 0

    @property
    def candidates(self) -> int:
        """Candidates handed over for each, k."""
        return 0

    @abc.abstractmethod
    def __call__(self, memory: Any, inputs: DraftInput) -> tuple[Any, Proposal]:
        """Drafts behind the last real row.

        Args:
          memory: what the last call returned, such as caches; None in the prefill.
          inputs: what to draft from.

        Returns:
          The new memory, a pytree of arrays whose shapes stay the same; and the draft.
        """
