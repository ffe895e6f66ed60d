"""Who is served next: one worker takes a step for each visitor in turn."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator

from dart_jax.errors import UserError

_logger = logging.getLogger(__name__)


class Job:
    """One visitor's work, a step an item of an iterator.

    Attributes:
      error: what ended it before its time; None if nothing did.
    """

    def __init__(self, steps: Iterator[object], wake: Callable[[], None]):
        """`wake`: tells the worker to look again."""
        self.error: Exception | None = None
        self._steps = steps
        self._wake = wake
        self._cancelled = False
        self._finished = threading.Event()

    @property
    def finished(self) -> bool:
        """Whether no step will be taken any more, and what it held is free."""
        return self._finished.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether somebody ended it."""
        return self._cancelled

    def cancel(self) -> None:
        """Ends it before its next step, without waiting; from any thread."""
        self._cancelled = True
        self._wake()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end; returns whether it came."""
        return self._finished.wait(seconds)

    def take_step(self) -> bool:
        """Takes the next step; returns whether there may be another. For the worker alone."""
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
        """Frees what the steps hold. For the worker alone."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()
        self._steps = iter(())
        self._finished.set()


class Turns:
    """A worker thread that goes round the jobs and takes one step of each.

    So many jobs take turns; as many more as there is room for wait, in order, for one of them to
    end. All steps of answers are taken on one thread; only `Warm` runs a model beside it.
    """

    def __init__(self, together: int = 16, waiting: int = 48):
        """Starts the worker.

        Args:
          together: most jobs that take turns.
          waiting: most jobs that wait to be among them.

        Raises:
          UserError: nobody could be served.
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
        """Takes a job; its first step comes after one of each job before it.

        Raises:
          UserError: no more can wait.
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
        """How many wait before a job; None if it does not wait."""
        with self._changed:
            return self._queue.index(job) if job in self._queue else None

    def close(self) -> None:
        """Ends all jobs and the worker, and waits for that."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            # The lock is free while a step is taken: others come and go meanwhile.
            more = job.take_step()
            with self._changed:
                self._round.remove(job)
                if more:
                    self._round.append(job)
        for job in (*self._round, *self._queue):
            job.cancel()
            job.end()

    def _next(self) -> Job | None:
        """The next job to take a step of; None to end. Those that were cancelled come at once."""
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
