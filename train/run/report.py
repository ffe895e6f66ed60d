"""The length of a run, in updates or time, and its steps: progress on stderr, figures in a file."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from dart_jax.files import atomic_path, writing
from dart_jax.programs.processes import is_main
from dart_jax.progress import progress_bars
from train.run.config import TrainerConfig
from train.run.mesh import from_main

_PARTS = 1_000_000  # of the time, as the learning rate's schedule divides it
Figures = Mapping[str, float]  # by name

_RECENT = 50  # steps that the shown loss and pace are averaged over


class Duration:
    """The progress of a run, the same in all processes. Time, with that of evaluations and
    checkpoints, passes from the end of a process's first update on, which compiles. `whole` is the
    end of the learning rate's schedule: updates, or parts of the time."""

    def __init__(self, config: TrainerConfig, seconds: float = 0.0):
        """Starts with the time that earlier processes trained."""
        self._steps, self._before = config.updates, seconds
        self._limit = 60 * (config.minutes or 0)
        self._began: float | None = None
        self.whole = self._steps or _PARTS

    def begin(self) -> None:
        """Lets the time pass, if it does not yet."""
        if self._began is None:
            self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time trained so far, by this process's clock."""
        return self._before + (0.0 if self._began is None else time.monotonic() - self._began)

    def at(self, step: int) -> int:
        """Returns the place in the schedule after `step` updates; the run is over at `whole`."""
        return step if self._steps else int(from_main(self._place(step)))

    def part(self, step: int) -> float:
        """Returns how far the run is after `step` updates, from 0 to 1, by this process's clock."""
        return self._place(step) / self.whole

    def count(self, step: int) -> str:
        """Says how far the run is after `step` updates."""
        if self._steps:
            return f"{step}/{self._steps}"
        return f"{step}, {min(self.seconds, self._limit) / 60:.1f} of {self._limit / 60:g} min"

    def _place(self, step: int) -> int:
        whole = self.whole
        return min(step if self._steps else int(self.seconds / self._limit * whole), whole)


def cut(path: Path, step: int) -> None:
    """Removes the lines of a run's metrics after `step`, from which it resumes: those steps will
    run again."""
    if path.is_file():
        with path.open("rb") as old, atomic_path(path) as part, part.open("wb") as new:
            new.writelines(line for line in old if 0 < _step(line) <= step)


class Report:
    """Reports the steps of a run in process 0, each a JSON object in a line of `metrics.jsonl`;
    does nothing in the others."""

    def __init__(self, name: str, directory: Path, duration: Duration, done: int, tokens: int = 0):
        """Prepares the file and starts the progress bar of a run of so many `tokens` per step, 0
        if unknown, after the steps `done` earlier."""
        self._name, self._directory, self._tokens = name, directory, tokens
        self._duration, self._main = duration, is_main()
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)  # losses and seconds
        self._open = contextlib.ExitStack()
        if self._main:
            self._metrics = directory / "metrics.jsonl"
            with writing("metrics", directory):
                cut(self._metrics, done)
            self._bars = self._open.enter_context(progress_bars())
            self._bar = self._bars.add_task(name, total=1, completed=duration.part(done))

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def step(self, number: int, seconds: float, figures: Figures, evaluated: Figures) -> None:
        """Reports step `number`, from 1, its own figures, with `loss` among them, and those of
        the evaluation after it, if there was one."""
        if not self._main:
            return
        self._recent.append((figures["loss"], seconds))
        loss = sum(loss for loss, _ in self._recent) / len(self._recent)
        note = f"step {self._duration.count(number)}, loss {loss:.3f}"
        record = {"step": number, **figures, "seconds": round(seconds, 6)}
        if self._tokens:
            record["tokens_per_second"] = round(self._tokens / seconds, 1)
        if self._tokens and len(self._recent) > 1:  # the first step compiles
            recent = [spent for _, spent in self._recent][1:]
            note += f", {self._tokens * len(recent) / sum(recent):,.0f} tokens/s"
        with writing("metrics", self._directory), self._metrics.open("a") as file:
            file.write(json.dumps({**record, **evaluated}) + "\n")
        self._bars.update(self._bar, completed=self._duration.part(number), note=note)
        if evaluated:
            values = "  ".join(f"{name} {value:.4g}" for name, value in evaluated.items())
            self.say(f"step {number}: {values}")

    def sync(self) -> None:
        """Flushes the figures so far to disk."""
        if self._main:
            with writing("metrics", self._directory), self._metrics.open("a") as file:
                os.fsync(file.fileno())

    def say(self, line: str) -> None:
        """Prints a line for the user."""
        if self._main:
            text = f"{self._name}: {line}"
            self._bars.console.print(text, soft_wrap=True, highlight=False, markup=False)


def _step(line: bytes) -> int:
    """Returns the step of a record; 0 for a line that a killed process left incomplete."""
    try:
        return json.loads(line)["step"] if line.endswith(b"\n") else 0
    except (ValueError, KeyError, TypeError):
        return 0
