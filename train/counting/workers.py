"""Worker processes for tasks: module-level functions that write their results to files."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from dart_jax.errors import UserError
from dart_jax.machine import end_with_parent


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Processes started in the block never receive Ctrl-C: they inherit the signal mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """Processes that run a `number` of tasks at a time and exit when this one ends, however it
    ends; one worker is this process itself."""

    def __init__(self, number: int):
        self.number = number
        self._pool: ProcessPoolExecutor | None = None
        if number > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(number, context, initializer=_begin)

    def map(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """Yields results in task order; submits lazily, at most two tasks per worker ahead.
        Raises UserError if a worker was killed."""
        if self._pool is None:
            yield from itertools.starmap(function, tasks)
            return
        waiting: deque[Future] = deque()
        try:
            for task in tasks:
                with _interrupts_held_back():  # the first call starts the workers
                    waiting.append(self._pool.submit(function, *task))
                if len(waiting) == 2 * self.number:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed, perhaps for lack of memory; run again with less "
                "--memory or fewer --workers to resume"
            ) from None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        """Stops everything, including running tasks."""
        if self._pool is not None:
            for process in (self._pool._processes or {}).values():
                process.kill()
            self._pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker per core
    end_with_parent()
