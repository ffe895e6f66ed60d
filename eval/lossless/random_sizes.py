"""Draft trees whose sizes are drawn at random, more often than any policy would change them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from dart_jax.decoding.adaptive.memory import TreeMemory
from dart_jax.decoding.adaptive.policy import Burst, Policy

# Steps of the longest burst, and how often plain decoding lasts to the end of the text.
_STEPS = 6
_REST = 1 / 16


class RandomSizes(Policy):
    """Draws sizes, lengths of bursts and pauses; learns nothing."""

    def __init__(self, sizes: Sequence[int], seed: int):
        super().__init__(sizes, sizes[-1])
        self._rng = np.random.default_rng(seed)
        self._drafted = True  # whether the last burst drafted

    def begin(self) -> Burst:
        """A draft."""
        self._drafted = True
        return Burst(int(self._rng.choice(self.sizes[1:])), self._length())

    def next(self) -> Burst:
        """Any size; after plain decoding a draft."""
        size = int(self._rng.choice(self.sizes)) if self._drafted else 0
        if size or not self._drafted:
            return self.begin()
        self._drafted = False
        return Burst(0, None if self._rng.random() < _REST else self._length())

    def learn(
        self, size: int, ranks: np.ndarray, trees: int, steps: int, seconds: float | None
    ) -> None:
        """Learns nothing."""

    def _length(self) -> int:
        return int(self._rng.integers(1, _STEPS + 1))


@dataclasses.dataclass(frozen=True)
class RandomMemory(TreeMemory):
    """Gives every generation sizes drawn at random."""

    _seeds: Iterator[int] = dataclasses.field(default_factory=itertools.count, repr=False)

    def policy(self, program: Hashable, kind: Hashable, sizes: Sequence[int], first: int) -> Policy:
        """See the class."""
        return RandomSizes(sizes, next(self._seeds))

    def keep(self, program: Hashable, policy: Policy) -> None:
        """Keeps nothing."""
