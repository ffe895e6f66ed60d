"""The n-gram model alone: the host's search grows trees of what it knows to follow."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class NgramConfig:
    """How far it looks ahead.

    Attributes:
      levels: deepest level of a tree.

    Raises:
      UserError: levels is below 1.
    """

    levels: int = 8

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise UserError(f"an n-gram tree needs at least 1 level, got {self.levels}")


@dataclasses.dataclass(frozen=True)
class Ngram(DraftingMethod):
    """See `dart_jax.decoding.drafting.base.DraftingMethod`; there is nothing to remember.

    Attributes:
      config: how far it looks ahead.
      nodes: tree nodes without the root, N.
    """

    config: NgramConfig
    nodes: int

    @property
    def depth(self) -> int:
        """Deepest level of a tree."""
        return min(self.config.levels, self.nodes)

    @property
    def searches(self) -> bool:
        """The host grows the tree."""
        return True

    def __call__(self, memory: None, inputs: DraftInput) -> tuple[None, Proposal]:
        """Leaves it to the host; see the base class."""
        return None, Proposal()
