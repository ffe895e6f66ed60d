"""EAGLE-3: grows the tree on the device with one forward pass per level."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree, draft_tree
from dart_jax.models.cache import KVCache, cache_from, extend, wait_for
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.pure import bind


@dataclasses.dataclass(frozen=True)
class Eagle3(DraftingMethod):
    """Drafts with an EAGLE-3 drafter (see the base class); `draft_state` is its KV cache.

    Attributes:
      config: the drafter's shapes.
      nodes: tree nodes without the root, N.
      tree: depth and width of the trees.
    """

    config: Eagle3Config
    nodes: int
    tree: Eagle3Tree

    @property
    def depth(self) -> int:
        """Maximum depth of a tree."""
        return min(self.tree.levels, self.nodes)

    def __call__(self, draft_state: KVCache | None, inputs: DraftInput) -> tuple[KVCache, Proposal]:
        """Drafts; see the base class."""
        trees, rows = draft_tree(
            self.tree,
            bind(self.config, inputs.params["drafter"], inputs.target.execution),
            inputs.target.embed,
            inputs.params["draft_ids"],
            inputs.features,
            inputs.next_tokens,
            inputs.positions,
            inputs.last,
            self.nodes,
            draft_state,
            inputs.start,
        )
        if draft_state is None:
            return cache_from(rows, inputs.capacity), Proposal(trees)
        return extend(draft_state, rows, wait_for(trees, inputs.start)), Proposal(trees)
