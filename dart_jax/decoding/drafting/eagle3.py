"""EAGLE-3: a forward a level grows the tree on the device."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree, draft_tree
from dart_jax.models.cache import KVCache, cache_from, extend, wait_for
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.pure import bind


@dataclasses.dataclass(frozen=True)
class Eagle3(DraftingMethod):
    """See `dart_jax.decoding.drafting.base.DraftingMethod`; its memory is the drafter's cache of the known tokens.

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

    def __call__(self, memory: KVCache | None, inputs: DraftInput) -> tuple[KVCache, Proposal]:
        """Drafts; see the base class."""
        trees, rows = draft_tree(
            self.tree,
            bind(self.config, inputs.params["drafter"]),
            inputs.target.embed,
            inputs.params["draft_ids"],
            inputs.features,
            inputs.following,
            inputs.positions,
            inputs.last,
            self.nodes,
            memory,
            inputs.start,
        )
        if memory is None:
            return cache_from(rows, inputs.capacity), Proposal(trees)
        return extend(memory, rows, wait_for(trees, inputs.start)), Proposal(trees)
