"""Schedules visitors: one worker runs a step of each visitor's job in turn."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator

from dart_jax.errors import UserError

_logger = logging.getLogger(__name__)


class Job:
    """One visitor's work: an iterator with one step per item.

    Attributes:
      error: the exception that ended it early, if any.
    """

    def __init__(self, steps: Iterator[object], wake: Callable[[], None]):
        """`wake`: notifies the worker of a change."""
        self.error: Exception | None = None
        self._steps = steps
        self._wake = wake
        self._cancelled = False
        self._finished = threading.Event()

    @property
    def finished(self) -> bool:
        """Whether it has ended and released its resources."""
        return self._finished.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def cancel(self) -> None:
        """Ends it before its next step, without waiting. Callable from any thread."""
        self._cancelled = True
        self._wake()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end; returns whether it has ended."""
        return self._finished.wait(seconds)

    def take_step(self) -> bool:
        """Runs the next step; returns whether there may be another. Only for the worker."""
        try:
            if not self._cancelled:
                next(self._steps)
                return True
        except StopIteration:
            pass
        except Exception as error:
            _logger.exception("an answer failed")
            self.error = error
        self.end()
        return False

    def end(self) -> None:
        """Releases what the steps hold. Only for the worker."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()
        self._steps = iter(())
        self._finished.set()


class Turns:
    """A worker thread that runs one step of each active job in turn.

    A limited number of jobs is active; further ones wait in order, up to a limit, for one of them
    to end. All steps of answers run on this thread; only `Warm` runs a model outside it.
    """

    def __init__(self, together: int = 16, waiting: int = 48):
        """Starts the worker.

        Args:
          together: maximum number of active jobs.
          waiting: maximum number of waiting jobs.

        Raises:
          UserError: the limits allow no job.
        """
        if together < 1 or waiting < 0:
            raise UserError(f"{together} visitors at once with {waiting} waiting serves nobody")
        self._together, self._most_waiting = together, waiting
        self._round: deque[Job] = deque()
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="turns", daemon=True)
        self._thread.start()

    def add(self, steps: Iterator[object]) -> Job:
        """Adds a job; its first step follows one step of each job before it.

        Raises:
          UserError: all places are taken.
        """
        with self._changed:
            if self._closed:
                raise UserError("the app is shutting down")
            here = sum(not job.cancelled for job in (*self._round, *self._queue))
            if here >= self._together + self._most_waiting:
                raise UserError(
                    f"all places are taken ({self._together} at once, {self._most_waiting} "
                    "waiting); try again in a moment"
                )
            job = Job(steps, self._notify)
            free = not self._queue and len(self._round) < self._together
            (self._round if free else self._queue).append(job)
            self._changed.notify_all()
            return job

    def ahead(self, job: Job) -> int | None:
        """Returns how many jobs wait ahead of a job; None if it is not waiting."""
        with self._changed:
            return self._queue.index(job) if job in self._queue else None

    def close(self) -> None:
        """Ends all jobs and the worker, and waits until they have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            # The lock is not held during a step: jobs can be added and cancelled meanwhile.
            more = job.take_step()
            with self._changed:
                self._round.remove(job)
                if more:
                    self._round.append(job)
        for job in (*self._round, *self._queue):
            job.cancel()
            job.end()

    def _next(self) -> Job | None:
        """Returns the next job to run, cancelled ones first; None to end."""
        with self._changed:
            while not self._closed:
                while self._queue and len(self._round) < self._together:
                    self._round.append(self._queue.popleft())
                for job in [job for job in self._queue if job.cancelled]:
                    self._queue.remove(job)
                    job.end()
                for job in self._round:
                    if job.cancelled:
                        return job
                if self._round:
                    return self._round[0]
                self._changed.wait()
        return None
