"""Reports every step of a run: progress on stderr, metrics in files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dart_jax.files import writing
from dart_jax.programs.processes import is_main
from train.run.config import TrainerConfig
from train.run.duration import Duration
from train.run.report.metrics import Metrics
from train.run.report.progress import ProgressDisplay


class StepWork(NamedTuple):
    """The work of one step.

    Attributes:
      tokens: tokens trained on; 0 if unknown.
      utilisation: of the devices' peak FLOP/s, if the step took one second; 0 if unknown.
    """

    tokens: int = 0
    utilisation: float = 0.0


class Report:
    """Reports in process 0; does nothing in the others."""

    def __init__(
        self, directory: Path, work: StepWork, outputs: tuple[ProgressDisplay, Metrics] | None
    ):
        self._directory, self._work, self._outputs = directory, work, outputs

    def step(
        self,
        number: int,
        seconds: float,
        figures: Mapping[str, float],
        evaluated: Mapping[str, float],
    ) -> None:
        """Reports a finished step.

        Args:
          number: the step's number, from 1.
          seconds: the step's duration.
          figures: the step's own figures, including `loss`.
          evaluated: figures of the evaluation after it, if there was one.
        """
        if self._outputs is None:
            return
        progress, metrics = self._outputs
        progress.step(number, figures["loss"], seconds)
        record = {"step": number, **figures, "seconds": round(seconds, 6)}
        if self._work.tokens:
            record["tokens_per_second"] = round(self._work.tokens / seconds, 1)
        if self._work.utilisation:
            record["mfu"] = round(self._work.utilisation / seconds, 6)
        with writing("metrics", self._directory):
            metrics.write({**record, **evaluated})
        if evaluated:
            values = "  ".join(f"{name} {value:.4g}" for name, value in evaluated.items())
            progress.say(f"step {number}: {values}")

    def sync(self) -> None:
        """Flushes the figures so far to disk."""
        if self._outputs is not None:
            with writing("metrics", self._directory):
                self._outputs[1].sync()

    def say(self, line: str) -> None:
        """Prints a line for the user."""
        if self._outputs is not None:
            self._outputs[0].say(line)

    @property
    def recent_loss(self) -> float:
        """Mean loss over recent steps; 0 except in process 0."""
        return self._outputs[0].loss if self._outputs is not None else 0.0


@contextlib.contextmanager
def reporting(
    name: str,
    directory: Path,
    config: TrainerConfig,
    duration: Duration,
    done: int,
    work: StepWork,
) -> Iterator[Report]:
    """Yields the report of the steps after `done`, with files in `directory`."""
    if not is_main():
        yield Report(directory, work, None)
        return
    with writing("metrics", directory):
        metrics = Metrics(directory, done, tensorboard=config.tensorboard)
    progress = ProgressDisplay(
        name,
        duration=duration,
        done=done,
        log_every=config.log_every,
        tokens=work.tokens,
        utilisation=work.utilisation,
    )
    with contextlib.closing(metrics), progress:
        yield Report(directory, work, (progress, metrics))
