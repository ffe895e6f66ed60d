"""Counts of what the engine has done and is doing."""

from __future__ import annotations

import dataclasses
from itertools import zip_longest

from dart_jax.engine.request import Output


@dataclasses.dataclass
class Statistics:
    """Counts since the start, the warm-up excluded, and what is held now.

    Attributes:
      running: requests with a slot.
      waiting: requests without one.
      pages: pages of the KV pools.
      pages_used: pages that requests hold, besides those kept for later ones.
      kv_bytes: what all pages can hold, in bytes.
      kv_tokens: likewise in tokens.
      prefix_queries: prompt tokens that were looked up among the kept pages.
      prefix_hits: those that were found.
      preemptions: how often a running request had to wait again.
      compilations: programs compiled.
      compilation_seconds: seconds for which requests waited for compilations.
      prompt_tokens: tokens of the prompts of requests that have begun.
      generation_tokens: tokens emitted.
      drafts: trees verified.
      draft_tokens: their nodes.
      accepted_per_position: nodes accepted by depth, from 1.
      failed: whether the engine had to stop.
      replicas: engines that these are of.
    """

    running: int = 0
    waiting: int = 0
    pages: int = 0
    pages_used: int = 0
    kv_bytes: int = 0
    kv_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    compilations: int = 0
    compilation_seconds: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_per_position: list[int] = dataclasses.field(default_factory=list)
    failed: bool = False
    replicas: int = 1

    @property
    def accepted_tokens(self) -> int:
        """Nodes accepted."""
        return sum(self.accepted_per_position)

    def count(self, output: Output) -> None:
        """Counts what a burst gave a request."""
        self.generation_tokens += len(output.ranks)
        self.drafts += output.verified
        self.draft_tokens += output.nodes
        # A step emits the accepted nodes, one of each depth, and then a token of the target's.
        depth = 0
        for rank in output.ranks.tolist():  # a few, for which NumPy would take longer
            depth = depth + 1 if rank else 0
            if depth > len(self.accepted_per_position):
                self.accepted_per_position.append(0)
            if depth:
                self.accepted_per_position[depth - 1] += 1


def add(one: Statistics, other: Statistics) -> Statistics:
    """Returns the sum of two."""
    sums = {
        field.name: getattr(one, field.name) + getattr(other, field.name)
        for field in dataclasses.fields(Statistics)
        if field.name not in ("accepted_per_position", "failed")
    }
    pairs = zip_longest(one.accepted_per_position, other.accepted_per_position, fillvalue=0)
    return Statistics(
        **sums,
        accepted_per_position=[a + b for a, b in pairs],
        failed=one.failed or other.failed,
    )
