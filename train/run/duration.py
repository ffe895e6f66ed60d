"""The length of a run: for a number of updates, or for a time."""

from __future__ import annotations

import time

from train.run.config import TrainerConfig
from train.run.mesh import from_main

_PARTS = 1_000_000  # of the time, as the learning rate's schedule divides it


class Duration:
    """The progress of a run, the same in all processes.

    Time passes from the end of the first update on, which compiles, and again from there when the
    run resumes; it includes evaluations and checkpoints. `whole` is the end of the learning rate's
    schedule: updates, or parts of the time.
    """

    def __init__(self, config: TrainerConfig, seconds: float = 0.0):
        """Starts with the time that earlier processes trained."""
        self._steps, self._before = config.updates or 0, seconds
        self._limit = None if config.minutes is None else 60 * config.minutes
        self._began: float | None = None
        self.whole = self._steps if self._limit is None else _PARTS

    def begin(self) -> None:
        """Lets the time pass, if it does not yet."""
        if self._began is None:
            self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time trained so far, by this process's clock."""
        return self._before + (0.0 if self._began is None else time.monotonic() - self._began)

    def at(self, step: int) -> int:
        """Returns the place in the schedule of update `step`, from 0."""
        if self._limit is None:
            return step
        return int(from_main(min(int(self.seconds / self._limit * _PARTS), _PARTS)))

    def over(self, done: int) -> bool:
        """Returns True if the run ends after `done` updates."""
        if self._limit is None:
            return done >= self._steps
        return bool(from_main(self.seconds >= self._limit))

    def count(self, done: int) -> str:
        """Says how far the run is after `done` updates."""
        if self._limit is None:
            return f"{done}/{self._steps}"
        return f"{done}, {min(self.seconds, self._limit) / 60:.1f} of {self._limit / 60:g} min"

    def part(self, done: int) -> float:
        """Returns how far the run is after `done` updates, from 0 to 1."""
        return min(1.0, done / self._steps if self._limit is None else self.seconds / self._limit)
