"""What a run tells: figures of every step for a person, a file and TensorBoard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dart_jax.files import writing
from train.run.config import TrainerConfig
from train.run.distributed import is_main
from train.run.metrics import Metrics
from train.run.watch import Watch


class Work(NamedTuple):
    """What a step does, where it is known.

    Attributes:
      tokens: how many it trains on.
      utilisation: of the devices' arithmetic, if it took a second.
    """

    tokens: int = 0
    utilisation: float = 0.0


class Report:
    """Process 0 tells; in the others nothing happens."""

    def __init__(self, directory: Path, work: Work, outlets: tuple[Watch, Metrics] | None):
        self._directory, self._work, self._outlets = directory, work, outlets

    def step(
        self,
        number: int,
        seconds: float,
        figures: Mapping[str, float],
        evaluated: Mapping[str, float],
    ) -> None:
        """The `number`th step is done.

        Args:
          number: from 1.
          seconds: it took.
          figures: of the step itself; `loss` is one.
          evaluated: the evaluation's behind it, if there was one.
        """
        if self._outlets is None:
            return
        watch, metrics = self._outlets
        watch.step(number, figures["loss"], seconds)
        record = {"step": number, **figures, "seconds": round(seconds, 6)}
        if self._work.tokens:
            record["tokens_per_second"] = round(self._work.tokens / seconds, 1)
        if self._work.utilisation:
            record["mfu"] = round(self._work.utilisation / seconds, 6)
        with writing("metrics", self._directory):
            metrics.write({**record, **evaluated})
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
    name: str, directory: Path, config: TrainerConfig, done: int, work: Work
) -> Iterator[Report]:
    """A report of the steps behind `done`, into the files of `directory`."""
    if not is_main():
        yield Report(directory, work, None)
        return
    with writing("metrics", directory):
        metrics = Metrics(directory, done, tensorboard=config.tensorboard)
    watch = Watch(
        name,
        steps=config.steps,
        done=done,
        log_every=config.log_every,
        tokens=work.tokens,
        utilisation=work.utilisation,
    )
    with contextlib.closing(metrics), watch:
        yield Report(directory, work, (watch, metrics))
