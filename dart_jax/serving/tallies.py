"""Counts what requests and steps do."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from dart_jax.serving.batch import Emitted
from dart_jax.serving.sequence import Sequence
from dart_jax.serving.statistics import Statistics

_REMEMBERED = 32  # ends of requests


class Tallies:
    """The counts of `Statistics` that are not somebody else's."""

    def __init__(self) -> None:
        self._prompt_tokens = self._generation_tokens = 0
        self._steps = self._drafts = self._draft_tokens = self._tree_nodes = 0
        self._accepted: list[int] = []
        self._ends: deque[float] = deque(maxlen=_REMEMBERED)

    def begin(self, sequence: Sequence) -> None:
        """Counts a request that gets a slot, but only once."""
        if sequence.begun is None:
            sequence.begun = time.monotonic()
            self._prompt_tokens += sequence.prompt_length

    def step(self, size: int, emitted: SequenceOf[Emitted]) -> None:
        """Counts a step with trees of a size."""
        self._steps += 1
        self._tree_nodes = size
        for each in emitted:
            self._generation_tokens += len(each.tokens)
            if not each.drafted:
                continue
            self._drafts += 1
            self._draft_tokens += each.drafted
            accepted = int(np.count_nonzero(each.ranks))
            self._accepted += [0] * (accepted - len(self._accepted))
            for depth in range(accepted):
                self._accepted[depth] += 1

    def end(self) -> None:
        """Counts the end of a request."""
        self._ends.append(time.monotonic())

    def seconds_per_request(self) -> float:
        """Seconds after which another request will have ended, about; at least 1."""
        if len(self._ends) < 2:
            return 1.0
        return max((self._ends[-1] - self._ends[0]) / (len(self._ends) - 1), 1.0)

    def statistics(self, **others: Any) -> Statistics:
        """A snapshot, with what others count."""
        return Statistics(
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            steps=self._steps,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_tokens=sum(self._accepted),
            accepted_per_position=tuple(self._accepted),
            tree_nodes=self._tree_nodes,
            **others,
        )
