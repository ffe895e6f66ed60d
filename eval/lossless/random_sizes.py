"""Draft trees whose sizes are drawn at random, more often than any policy would change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dart_jax.decoding.paying import Lessons, Paying
from dart_jax.engine.request import SamplingMode
from dart_jax.engine.tree_size import PAUSES, State, TreeSizes

# Steps of the longest burst, and how often plain decoding lasts so long that the drafter does not
# follow it.
_STEPS = 6
_REST = 1 / 16


class RandomSizes(TreeSizes):
    """Draws sizes, the nodes that each step verifies, lengths of bursts and pauses; learns
    nothing."""

    def __init__(self, sizes: Mapping[int, Sequence[int]], seed: int):
        super().__init__(sizes)
        self._rng, self._state = np.random.default_rng(seed), State(0, 0)
        self._left, self._rests = 0, False  # steps of the present burst; whether it is a rest

    def choose(self, rows: int, level: SamplingMode) -> State:
        """Returns any size, for some steps."""
        if self._left <= 0:
            size = int(self._rng.choice(self.sizes[rows]))
            self._left = int(self._rng.integers(1, _STEPS + 1))
            self._rests = not size and self._rng.random() < _REST
            paying = None
            if size:
                numbers = self._rng.integers(-1, size + 1, len(Paying.all(size).numbers))
                paying = Paying.all(size)._replace(numbers=numbers.astype(np.int32))
            self._state = State(size, self._left, paying)
        return self._state._replace(left=PAUSES[1] if self._rests else self._left)

    def drafts(self, rows: int, level: SamplingMode) -> bool:
        """Returns True: drafts may follow at any time."""
        return True

    def learn(
        self,
        rows: int,
        level: SamplingMode,
        size: int,
        steps: int,
        lessons: Lessons[np.ndarray] | None,
        seconds: float | None,
        times: np.ndarray | None = None,
    ) -> None:
        """Counts the steps."""
        self._left -= steps
