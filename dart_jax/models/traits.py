"""What other code asks of a drafter's config of any kind."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Self

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of a drafting method, as its config determines them.

    Attributes:
      kind: the method's name, for programs.
      title: the same for people, with what it has beyond its kind.
      search: what a search builds its trees from, the candidates of one forward pass or the n-gram
        model alone. None if the method drafts its trees itself.
      sequential: whether larger trees take more passes of a drafter.
      couples: whether it ranks its drafts with the noise of the target's draws.
      pairs: whether it scores pairs of successive tokens.
      chain: whether it drafts a single chain.
      nodes: of a tree by default, where rows cost little.
      features: whether it reads the target's features.
    """

    kind: str
    title: str = ""
    search: Literal["candidates", "ngram"] | None = None
    sequential: bool = False
    couples: bool = False
    pairs: bool = False
    chain: bool = False
    nodes: int = 60
    features: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.kind)


class DraftingConfig:
    """Base class of configs that select a drafting method: of drafters, of a small language model,
    and of methods without parameters. A `target` is a `TargetConfig`."""

    @property
    def traits(self) -> Traits:
        """The method's traits."""
        raise NotImplementedError

    @property
    def pairs_apart(self) -> bool:
        """Returns True if pair scores are stored in a file of their own."""
        return False

    def without_pairs(self) -> Self:
        """Returns the config of the same drafter without pair scores of their own file."""
        return self

    def layers_read(self, target: Any) -> tuple[int, ...]:
        """Returns the target's layers whose input it reads, ascending; empty if the target is too
        small to have them."""
        return target.feature_layers

    def with_window(self, window: int | None) -> Self:
        """Returns the config of the same drafter with a window in all layers, or None for none."""
        raise UserError(
            "a window is that of a DART, EAGLE-3 or block drafter; pass one, or leave the window "
            "out"
        )

    def check_fit(self, target: Any) -> None:
        """Raises UserError unless it was trained for a target of these shapes."""
