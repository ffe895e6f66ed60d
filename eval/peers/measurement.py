"""Starts the engines, chooses their threads, and times them in turn."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dart_jax.errors import UserError
from eval.peers.config import PeersConfig
from eval.peers.engine import Decoded, Setup
from eval.peers.registry import ENGINES, PLAIN
from eval.peers.worker import EngineError, Worker

# Passes over the warm-up prompt per number of threads: some that compile, and some to compare.
_WARM_UPS, _TRIALS = 2, 3

# Seconds between two engines: threads of the last one may still wait in a loop for more work.
_PAUSE = 0.02


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One engine in one precision.

    Attributes:
      engine: its name.
      title: its title in tables.
      versions: of its packages.
      precision: of weights and arithmetic, as tables show it.
      threads: cores that it used.
      new_tokens: for each prompt.
      seconds: [repeat][prompt], of all new tokens but the first.
      cpu_seconds: likewise, the processor time of all its threads.
      same: [prompt], how many of the first tokens are those of plain decoding here, in every
        repeat.
    """

    engine: str
    title: str
    versions: dict[str, str]
    precision: str
    threads: int
    new_tokens: int
    seconds: list[list[float]]
    cpu_seconds: list[list[float]]
    same: list[int]

    @property
    def rates(self) -> list[float]:
        """Tokens per second over all prompts, one value per repeat."""
        return [_rate(each, self.new_tokens) for each in self.seconds]

    @property
    def cpu_rates(self) -> list[float]:
        """Tokens per second of processor time, likewise."""
        return [_rate(each, self.new_tokens) for each in self.cpu_seconds]

    def ratios(self, baseline: Measurement) -> list[float]:
        """Rates over those of the baseline, one value per repeat."""
        return [ours / theirs for ours, theirs in zip(self.rates, baseline.rates, strict=True)]


def _rate(seconds: Sequence[float], new_tokens: int) -> float:
    return len(seconds) * (new_tokens - 1) / sum(seconds) if sum(seconds) else float("nan")


class Peers(contextlib.ExitStack):
    """The engines that run here. A context manager: ends their processes.

    Attributes:
      workers: an engine in one precision each, plain decoding first.
      left_out: why others do not run, a line each.
    """

    def __init__(self, config: PeersConfig, target: Path, work: Path, max_length: int):
        """Starts nothing yet; arguments as in `Setup`."""
        super().__init__()
        self.workers: list[Worker] = []
        self.left_out: list[str] = []
        self._config = config
        self._base = Setup(config, target, work, PLAIN, "auto", 1, max_length)

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """Engines that are installed, and their precisions; the others are put on `left_out`."""
        found = []
        for name in self._config.engines:
            entry = ENGINES[name]
            if missing := entry.missing:
                needed = f"pip install {' '.join(missing)}"
                self.left_out.append(f"{entry.title} is not installed: {needed}")
            else:
                found += [(name, precision) for precision in entry.precisions]
        return found

    def start(self, name: str, precision: str, prompt: np.ndarray) -> None:
        """Starts an engine with the number of threads that is fastest on a warm-up prompt.

        Raises:
          UserError: it is plain decoding, and fails. Others are put on `left_out`.
        """
        setups = [
            dataclasses.replace(self._base, name=name, precision=precision, threads=threads)
            for threads in self._config.thread_choices
        ]
        try:
            worker = self._fastest(setups, prompt)
        except EngineError as error:
            if name == PLAIN:
                raise UserError(str(error)) from None
            self.left_out.append(f"{ENGINES[name].title}, {precision}: {error}")
            return
        self.workers.append(self.enter_context(worker))

    def _fastest(self, setups: Sequence[Setup], prompt: np.ndarray) -> Worker:
        """Starts an engine with every setup and times them in turn; returns the one that took the
        least time, and ends the others."""
        workers: list[Worker] = []
        least: dict[Worker, float] = {}
        try:
            for setup in setups:
                workers.append(Worker(setup))
            for trial in range(_WARM_UPS + _TRIALS):
                for worker in workers:
                    seconds = worker.decode(prompt, self._config.new_tokens).seconds
                    if trial >= _WARM_UPS:
                        least[worker] = min(seconds, least.get(worker, seconds))
                    time.sleep(_PAUSE)
            return workers.pop(workers.index(min(workers, key=least.__getitem__)))
        finally:
            for worker in workers:
                worker.close()

    def measure(
        self, prompts: Sequence[np.ndarray], advance: Callable[[], None] = lambda: None
    ) -> list[Measurement]:
        """Decodes every prompt with every engine, in turn; returns a measurement per worker."""
        repeats = self._config.repeats
        decoded: list[list[list[Decoded]]] = [[[] for _ in range(repeats)] for _ in self.workers]
        for repeat in range(repeats):
            for n, prompt in enumerate(prompts):
                # Rotate which engine goes first.
                first = (repeat + n) % len(self.workers)
                order = range(first, first + len(self.workers))
                for place in (each % len(self.workers) for each in order):
                    worker = self.workers[place]
                    decoded[place][repeat].append(worker.decode(prompt, self._config.new_tokens))
                    time.sleep(_PAUSE)
                advance()
        return [
            _measurement(worker.setup, worker.precision, of_worker, decoded[0][0])
            for worker, of_worker in zip(self.workers, decoded, strict=True)
        ]


def _measurement(
    setup: Setup,
    precision: str,
    decoded: Sequence[Sequence[Decoded]],  # [repeat][prompt]
    plain: Sequence[Decoded],  # [prompt], those of plain decoding
) -> Measurement:
    entry = ENGINES[setup.name]
    return Measurement(
        setup.name,
        entry.title,
        entry.versions,
        precision,
        setup.threads,
        setup.config.new_tokens,
        [[each.seconds for each in row] for row in decoded],
        [[each.cpu_seconds for each in row] for row in decoded],
        [
            min(_common(row[n].tokens, reference.tokens) for row in decoded)
            for n, reference in enumerate(plain)
        ],
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens before the first difference."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
