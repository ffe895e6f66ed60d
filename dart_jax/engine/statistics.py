"""Counts of what the engine has done and is doing."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from dart_jax.engine.request import Output

_REMEMBERED = 32  # ends of requests


@dataclasses.dataclass(frozen=True)
class Statistics:
    """A snapshot. Counts are since the start, the warm-up excluded.

    Attributes:
      running: requests with a slot.
      waiting: requests without one.
      pages: pages of the KV pools.
      pages_used: those that requests hold, beside what is kept for later ones.
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
      accepted_tokens: nodes accepted.
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
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    failed: bool = False
    replicas: int = 1


def add(one: Statistics, other: Statistics) -> Statistics:
    """The sum of two."""
    sums = {
        field.name: getattr(one, field.name) + getattr(other, field.name)
        for field in dataclasses.fields(Statistics)
        if field.name not in ("accepted_per_position", "failed")
    }
    pairs = zip_longest(one.accepted_per_position, other.accepted_per_position, fillvalue=0)
    return Statistics(
        **sums,
        accepted_per_position=tuple(a + b for a, b in pairs),
        failed=one.failed or other.failed,
    )


class Counters:
    """The counts of `Statistics` that are not somebody else's."""

    def __init__(self) -> None:
        self._prompt_tokens = self._generation_tokens = 0
        self._drafts = self._draft_tokens = 0
        self._accepted: list[int] = []
        self._held: deque[float] = deque(maxlen=_REMEMBERED)

    def begin(self, prompt_tokens: int) -> None:
        """Counts a request that gets a slot."""
        self._prompt_tokens += prompt_tokens

    def burst(self, outputs: Iterable[Output]) -> None:
        """Counts what a burst gave."""
        for output in outputs:
            ranks = output.ranks
            self._generation_tokens += len(ranks)
            self._drafts += output.verified
            self._draft_tokens += output.nodes
            # A step emits the accepted nodes, one of each depth, and then a token of the target's.
            depth = 0
            for rank in ranks.tolist():  # a few, for which NumPy would take longer
                depth = depth + 1 if rank else 0
                if depth > len(self._accepted):
                    self._accepted.append(0)
                if depth:
                    self._accepted[depth - 1] += 1

    def end(self, seconds: float) -> None:
        """Counts the end of a request, which had a slot for `seconds`."""
        self._held.append(seconds)

    @property
    def seconds_in_slot(self) -> float:
        """Seconds for which requests had their slots lately, on average; 1 if it is not known."""
        return sum(self._held) / len(self._held) if self._held else 1.0

    def statistics(self, **others: Any) -> Statistics:
        """A snapshot, with what others count."""
        return Statistics(
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_tokens=sum(self._accepted),
            accepted_per_position=tuple(self._accepted),
            **others,
        )
