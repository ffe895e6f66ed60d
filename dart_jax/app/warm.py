"""Programs are compiled before an answer's clock starts, and beside the answers of others."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable

import jax

from dart_jax.app.turns import Turns
from dart_jax.errors import UserError
from dart_jax.text_generation import TextGeneration

# Every program takes memory, and memory mappings, of which a process may have only so many.
_MOST = 100

# The prefill, a step behind it, and one whose arguments all come from a step.
_STEPS = 3


class Warm:
    """Knows which programs have been run, and runs those that have not."""

    def __init__(self, turns: Turns, most: int = _MOST):
        """`turns`: where programs are dropped, so that none is running; `most`: kept."""
        self._turns, self._most = turns, most
        self._known: set[Hashable] = set()
        self._lock = threading.Lock()

    def knows(self, generation: TextGeneration) -> bool:
        """Whether a generation would start at once."""
        return generation.programs in self._known

    def prepare(self, make: Callable[[], TextGeneration]) -> None:
        """Runs the programs of a generation like those that `make` makes, one at a time.

        It takes seconds where they must be compiled, and blocks nobody but those who wait for
        programs too.
        """
        with self._lock:
            generation = make()
            programs = generation.programs
            if programs in self._known:
                return
            if len(self._known) >= self._most:
                self._drop()
            steps = generation.steps(watch=True)
            taken = sum(1 for _ in itertools.islice(steps, _STEPS))
            steps.close()
            # A text that ends at once has not run them all.
            if taken == _STEPS:
                self._known.add(programs)

    def _drop(self) -> None:
        """Forgets all programs; those still needed come back from the cache on disk."""

        def forget():
            jax.clear_caches()
            yield

        try:
            self._turns.add(forget()).wait()
        except UserError:
            return  # too busy now: next time
        self._known.clear()
