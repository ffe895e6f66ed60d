"""The progress display of a run: a bar on a terminal, occasional lines in a log file."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dart_jax.progress import INTERVAL
from train.run.duration import Duration

_RECENT = 50  # steps that the shown figures are averaged over


class ProgressDisplay:
    """Shows progress on stderr."""

    def __init__(
        self,
        name: str,
        *,
        duration: Duration,
        done: int,
        log_every: int,
        tokens: int = 0,
        utilisation: float = 0.0,
        console: Console | None = None,
    ):
        """Starts at `done` updates.

        Args:
          name: name of the run.
          duration: says how long the run trains.
          done: steps done earlier.
          log_every: steps between lines if there is no terminal.
          tokens: tokens per step; 0 if unknown.
          utilisation: of the devices' peak FLOP/s at one step per second; 0 if unknown.
          console: where to write; None for stderr.
        """
        self._name, self._duration, self._log_every = name, duration, log_every
        self._done = done
        self._tokens, self._utilisation = tokens, utilisation
        self._losses: deque[float] = deque(maxlen=_RECENT)
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._first, self._told = True, time.monotonic()
        self.console = console or Console(stderr=True)
        self._bar = None
        if self.console.is_terminal:
            columns = (BarColumn(), TextColumn("{task.fields[count]}"), TimeRemainingColumn())
            self._bar = Progress(
                TextColumn("{task.description}"),
                *columns,
                TextColumn("{task.fields[note]}"),
                console=self.console,
            )
            self._task = self._bar.add_task(name, total=1, count=duration.count(done), note="")
            self._bar.update(self._task, completed=duration.part(done))

    def __enter__(self) -> ProgressDisplay:
        if self._bar is None:
            self.say(f"at step {self._duration.count(self._done)}; the next one compiles")
        else:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, number: int, loss: float, seconds: float) -> None:
        """Shows that step `number` is done and how long it took."""
        self._losses.append(loss)
        if not self._first:  # the first step compiles
            self._seconds.append(seconds)
        self._first = False
        note = "  ".join(self._figures())
        if self._bar is not None:
            part, count = self._duration.part(number), self._duration.count(number)
            self._bar.update(self._task, completed=part, count=count, note=note)
        elif self._due(number):
            self._told = time.monotonic()
            left = ""
            if self._seconds:
                pace = sum(self._seconds) / len(self._seconds)
                left = f"  {self._duration.left(number, pace)} left"
            self.say(f"step {self._duration.count(number)}  {note}{left}")

    def _due(self, number: int) -> bool:
        """Whether a line of a log tells this step."""
        late = time.monotonic() - self._told >= INTERVAL
        return late or number % self._log_every == 0 or self._duration.part(number) >= 1

    def say(self, line: str) -> None:
        """Prints a permanent line."""
        self.console.print(f"{self._name}: {line}", soft_wrap=True, highlight=False, markup=False)

    @property
    def loss(self) -> float:
        """Mean loss over recent steps."""
        return sum(self._losses) / len(self._losses)

    def _figures(self) -> list[str]:
        figures = [f"loss {self.loss:.3f}"]
        if self._seconds:
            pace = len(self._seconds) / sum(self._seconds)
            if self._tokens:
                figures.append(f"{self._tokens * pace:,.0f} tokens/s")
            if self._utilisation:
                figures.append(f"MFU {self._utilisation * pace:.1%}")
        return figures
