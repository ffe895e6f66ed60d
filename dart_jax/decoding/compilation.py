"""Measures how long JAX traces and compiles, so that programs can tell it apart from running."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator

import jax

from dart_jax.memory import give_back

# Names of JAX's events begin with this: tracing, lowering and compiling a program, or reading it
# from the persistent cache.
_EVENTS = "/jax/core/compile/"
_PROGRAM = _EVENTS + "backend_compile_duration"
_LONG = 0.05  # seconds; a compilation that takes longer leaves memory to be given back

_local = threading.local()


class CompileTime:
    """Time that the current thread spent compiling inside `measure_compilation`.

    Attributes:
      programs: programs that were compiled, or read from the persistent cache.
      seconds: time so far.
    """

    def __init__(self) -> None:
        self.programs = 0
        self.seconds = 0.0
        self._spans: list[tuple[float, float]] = []

    def _add(self, begin: float, end: float) -> None:
        # A function that is traced inside another one reports its own time first.
        while self._spans and self._spans[-1][0] >= begin:
            inner = self._spans.pop()
            self.seconds -= inner[1] - inner[0]
        self._spans.append((begin, end))
        self.seconds += end - begin


@contextlib.contextmanager
def measure_compilation() -> Iterator[CompileTime]:
    """Measures the compilation of the programs that the block calls, in this thread."""
    _listen()
    measured, outer = CompileTime(), getattr(_local, "measured", None)
    _local.measured = measured
    try:
        yield measured
    finally:
        _local.measured = outer
        if outer is not None:
            outer.programs += measured.programs
            for span in measured._spans:
                outer._add(*span)


@functools.cache
def _listen() -> None:
    """Registers the listener, once per process: JAX cannot remove a single one."""
    jax.monitoring.register_event_duration_secs_listener(_compiled)


def _compiled(event: str, duration_secs: float, **_: str | int) -> None:
    measured = getattr(_local, "measured", None)
    if measured is not None and event.startswith(_EVENTS):
        now = time.perf_counter()
        measured._add(now - duration_secs, now)
        measured.programs += event == _PROGRAM
        if event == _PROGRAM and duration_secs > _LONG:
            give_back()
