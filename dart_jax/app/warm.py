"""Compiles programs before an answer's clock starts, in parallel with other answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

import jax

from dart_jax.app.turns import Turns
from dart_jax.errors import UserError
from dart_jax.generation import TextGeneration

# Programs take memory, and memory mappings, whose number per process is limited.
_MOST = 100


class Warm:
    """Tracks which programs are compiled and compiles others by running them."""

    def __init__(self, turns: Turns, most: int = _MOST):
        """`turns`: drops programs between steps, when none is running; `most`: maximum kept."""
        self._turns, self._most = turns, most
        self._compiled: set[Hashable] = set()
        self._lock = threading.Lock()
        self._closed = False

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
            preparing, complete = generation.prepare(), False
            while not self._closed:
                try:
                    next(preparing)
                except StopIteration as end:
                    complete = end.value
                    break
            if complete:
                self._compiled.add(programs)

    def close(self) -> None:
        """Ends what is being prepared after its current step, without waiting."""
        self._closed = True

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
