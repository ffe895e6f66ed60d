"""EAGLE-3: a forward a level grows the tree on the device."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.drafting.base import Drafting, Known, Proposal
from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree, draft_tree
from dart_jax.models.cache import KVCache, after, begin, extend
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.pure import bind


@dataclasses.dataclass(frozen=True)
class Eagle3(Drafting):
    """See `dart_jax.decoding.drafting.base.Drafting`; its memory is the drafter's cache of the known tokens.

    Attributes:
      config: the drafter's shapes.
      nodes: tree nodes without the root, N.
      tree: how deep and wide trees are drafted.
    """

    config: Eagle3Config
    nodes: int
    tree: Eagle3Tree

    @property
    def depth(self) -> int:
        """Deepest level of a tree."""
        return min(self.tree.levels, self.nodes)

    def __call__(self, memory: KVCache | None, known: Known) -> tuple[KVCache, Proposal]:
        """Drafts; see the base class."""
        trees, rows = draft_tree(
            self.tree,
            bind(self.config, known.params["drafter"]),
            known.target.embed,
            known.params["draft_ids"],
            known.features,
            known.following,
            known.positions,
            known.last,
            self.nodes,
            memory,
            known.start,
        )
        if memory is None:
            return begin(rows, known.capacity), Proposal(trees)
        return extend(memory, rows, after(trees, known.start)), Proposal(trees)
