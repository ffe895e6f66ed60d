"""EAGLE-3: grows the tree on the device with one forward pass per level."""

from __future__ import annotations

import dataclasses

from dart_jax.decoding.drafting.base import (
    DraftingMethod,
    DraftInput,
    PromptRows,
    Proposal,
)
from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree, draft_tree
from dart_jax.models.attention.compaction import extend, keep_rows
from dart_jax.models.cache import Cache, order_after
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.pure import bind


@dataclasses.dataclass(frozen=True)
class Eagle3(DraftingMethod):
    """Drafts with an EAGLE-3 drafter (see the base class); `draft_state` is its KV cache.

    Attributes:
      tree: depth and width of the trees.
    """

    config: Eagle3Config
    nodes: int
    tree: Eagle3Tree

    @property
    def depth(self) -> int:
        """Maximum depth of a tree."""
        return min(self.tree.levels, self.nodes)

    def read(self, draft_state: Cache, rows: PromptRows) -> Cache:
        """Reads rows of the prompts; see the base class."""
        drafter = bind(self.config, rows.params["drafter"], rows.options)
        embeds = drafter.embedding(rows.target.embed)(rows.next_tokens)
        inputs = drafter.join(embeds, drafter.project(rows.features))
        read = (drafter.keys_at(inputs, rows.positions),)
        return keep_rows(draft_state, read, rows.start, rows.options.attention)

    def __call__(self, draft_state: Cache, inputs: DraftInput) -> tuple[Cache, Proposal]:
        """Drafts; see the base class."""
        drafter = bind(self.config, inputs.params["drafter"], inputs.options)
        trees, rows = draft_tree(self.tree, drafter, inputs, self.nodes, draft_state)
        start = order_after(trees, inputs.start)
        return extend(draft_state, rows, start, inputs.options.attention), Proposal(trees)
