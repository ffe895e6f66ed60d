"""Counts of what the engine has done and is doing."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Statistics:
    """A snapshot. Counts are since the start, the warm-up excluded.

    Attributes:
      running: requests with a slot.
      waiting: requests without one.
      slots: number of slots.
      pages: pages of the KV pools.
      pages_used: those that requests hold, beside what is kept for later ones.
      prefix_queries: prompt tokens that were looked up among the kept pages.
      prefix_hits: those that were found.
      preemptions: how often a running request had to wait again.
      compilations: programs compiled.
      prompt_tokens: tokens of the prompts of requests that have begun.
      generation_tokens: tokens emitted.
      steps: steps of the whole batch.
      drafts: trees verified.
      draft_tokens: their nodes.
      accepted_tokens: nodes accepted.
      accepted_per_position: nodes accepted by depth, from 1.
      tree_nodes: size of the last step's trees.
      failed: whether the engine had to stop.
      replicas: engines that these are of.
    """

    running: int = 0
    waiting: int = 0
    slots: int = 0
    pages: int = 0
    pages_used: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    compilations: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    tree_nodes: int = 0
    failed: bool = False
    replicas: int = 1
