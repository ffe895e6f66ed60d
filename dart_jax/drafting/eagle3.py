"""EAGLE-3: a forward a level grows the tree on the device."""

from __future__ import annotations

import dataclasses

from dart_jax.cache import KVCache, extend
from dart_jax.config import Eagle3Config
from dart_jax.drafting.base import Known, Proposal
from dart_jax.eagle3 import Eagle3Tree, draft_tree
from dart_jax.pure import bind


@dataclasses.dataclass(frozen=True)
class Eagle3:
    """See `dart_jax.drafting.base.Drafting`; its memory is the drafter's cache of the known tokens.

    Attributes:
      config: the drafter's shapes.
      nodes: tree nodes without the root, N.
      tree: how deep and wide trees are drafted.
    """

    config: Eagle3Config
    nodes: int
    tree: Eagle3Tree
    positions = candidates = 0
    searches = False

    @property
    def depth(self) -> int:
        """Deepest level of a tree."""
        return min(self.tree.levels, self.nodes)

    def __call__(self, memory: KVCache, known: Known) -> tuple[KVCache, Proposal]:
        """Drafts; see the protocol."""
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
            memory if known.start is not None else None,
            known.start,
        )
        return extend(memory, rows, known.start, known.capacity), Proposal(trees)
