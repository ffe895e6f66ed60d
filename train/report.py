"""What a run tells: figures of every step for a person, a file and TensorBoard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from train.disk import writing
from train.distributed import is_main
from train.metrics import Metrics
from train.watch import Watch


class Report:
    """Process 0 tells; in the others nothing happens."""

    def __init__(self, directory: Path, outlets: tuple[Watch, Metrics] | None):
        self._directory, self._outlets = directory, outlets

    def step(self, number: int, figures: Mapping[str, float], evaluated: Mapping[str, float]):
        """The `number`th step is done: its own figures, and the evaluation's if it had one."""
        if self._outlets is None:
            return
        watch, metrics = self._outlets
        watch.step(number, figures["loss"], figures["seconds"])
        with writing("metrics", self._directory):
            metrics.write({"step": number, **figures, **evaluated})
        if evaluated:
            told = "  ".join(f"{name} {value:.4g}" for name, value in evaluated.items())
            watch.say(f"step {number}: {told}")

    def sync(self) -> None:
        """Returns when the figures so far are on the disk."""
        if self._outlets is not None:
            with writing("metrics", self._directory):
                self._outlets[1].sync()

    def say(self, line: str) -> None:
        """A line for the person."""
        if self._outlets is not None:
            self._outlets[0].say(line)

    @property
    def recent_loss(self) -> float:
        """Mean over the last steps; process 0 alone knows it."""
        return self._outlets[0].loss if self._outlets is not None else 0.0


@contextlib.contextmanager
def reporting(
    name: str,
    directory: Path,
    *,
    steps: int,
    done: int,
    log_every: int,
    tensorboard: bool,
    tokens: int,
    utilisation: float,
) -> Iterator[Report]:
    """A report of the steps from `done` to `steps`; the arguments are those of its outlets."""
    if not is_main():
        yield Report(directory, None)
        return
    with writing("metrics", directory):
        metrics = Metrics(directory, done, tensorboard=tensorboard)
    watch = Watch(
        name,
        steps=steps,
        done=done,
        log_every=log_every,
        tokens=tokens,
        utilisation=utilisation,
    )
    with contextlib.closing(metrics), watch:
        yield Report(directory, (watch, metrics))
