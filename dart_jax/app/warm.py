"""Compiles programs before an answer's clock starts, in parallel with other answers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable

import jax

from dart_jax.app.turns import Turns
from dart_jax.errors import UserError
from dart_jax.generation import TextGeneration

# Programs take memory, and memory mappings, whose number per process is limited.
_MOST = 100

# The prefill, the step after it, and one whose arguments all come from a step.
_STEPS = 3


class Warm:
    """Tracks which programs are compiled and compiles others by running them."""

    def __init__(self, turns: Turns, most: int = _MOST):
        """`turns`: drops programs between steps, when none is running; `most`: maximum kept."""
        self._turns, self._most = turns, most
        self._compiled: set[Hashable] = set()
        self._lock = threading.Lock()

    def is_compiled(self, generation: TextGeneration) -> bool:
        """Whether a generation would start without compiling."""
        return generation.programs in self._compiled

    def prepare(self, make: Callable[[], TextGeneration]) -> None:
        """Runs the programs of a generation from `make`, one generation at a time.

        Takes seconds if they must be compiled, but blocks only other calls that wait for programs.
        """
        with self._lock:
            generation = make()
            programs = generation.programs
            if programs in self._compiled:
                return
            if len(self._compiled) >= self._most:
                self._drop()
            steps = generation.steps(with_drafts=True)
            taken = sum(1 for _ in itertools.islice(steps, _STEPS))
            steps.close()
            # A text that ends early has not run all programs.
            if taken == _STEPS:
                self._compiled.add(programs)

    def _drop(self) -> None:
        """Drops all programs; those still needed are loaded from the cache on disk."""

        def forget():
            jax.clear_caches()
            yield

        try:
            self._turns.add(forget()).wait()
        except UserError:
            return  # too busy; retry next time
        self._compiled.clear()
