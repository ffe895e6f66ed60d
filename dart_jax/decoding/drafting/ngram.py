"""Drafting with only the n-gram model: the search grows trees of its continuations."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jax.typing import DTypeLike

from dart_jax.decoding.drafting.base import (
    DraftingMethod,
    DraftInput,
    MethodConfig,
    PromptRows,
    Proposal,
)
from dart_jax.errors import UserError
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.traits import Traits


@dataclasses.dataclass(frozen=True)
class NgramConfig(MethodConfig):
    """Options of drafting with only the n-gram model.

    Attributes:
      levels: maximum depth of a tree.

    Raises:
      UserError: levels is below 1.
    """

    title: ClassVar[str] = "n-gram model alone"
    levels: int = 8

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise UserError(f"an n-gram tree needs at least 1 level, got {self.levels}")

    @property
    def traits(self) -> Traits:
        """Only the search knows what it drafts, so it adds the noise, too; see the base class."""
        return Traits(kind=self.title, search="ngram", couples=True)

    def method(self, nodes: int) -> Ngram:
        """Returns the method; see the base class."""
        return Ngram(self, nodes)


@dataclasses.dataclass(frozen=True)
class Ngram(DraftingMethod):
    """Drafts with the n-gram model (see the base class); it has no `draft_state`."""

    config: NgramConfig
    nodes: int

    @property
    def depth(self) -> int:
        """Maximum depth of a tree."""
        return min(self.config.levels, self.nodes)

    def empty(self, batch: int, capacity: int, dtype: DTypeLike, options: LayerOptions) -> None:
        """None: it keeps nothing."""

    def read(self, draft_state: None, rows: PromptRows) -> None:
        """Reads nothing."""

    def __call__(self, draft_state: None, inputs: DraftInput) -> tuple[None, Proposal]:
        """Proposes nothing: the search drafts."""
        return None, Proposal()
