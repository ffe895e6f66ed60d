"""What every engine is given, and what it returns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from eval.peers.config import PeersConfig
from eval.peers.layout import once, transformers_directory


@dataclasses.dataclass(frozen=True)
class Setup:
    """What an engine runs, and how.

    Attributes:
      config: the program's options.
      target: directory of the target, from `hub.resolve`.
      work: directory for files in the engine's own format; exists, and is deleted at the end.
      name: the engine, as in `eval.peers.registry`.
      precision: of its weights and arithmetic.
      threads: cores that it may use.
      max_length: prompt and new tokens together, at most.
    """

    config: PeersConfig
    target: Path
    work: Path
    name: str
    precision: str
    threads: int
    max_length: int

    def converted(self, write: Callable[[Path], Any]) -> Path:
        """Returns the directory of the converted weights, which `write` fills if there is none.

        The same for every number of threads.
        """
        return once(self.work / f"{self.name}-{self.precision}", write)

    @property
    def transformers(self) -> Path:
        """Directory of the target for transformers and what reads its files."""
        return transformers_directory(self.target, self.work / "transformers")


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A continuation.

    Attributes:
      tokens: the new tokens.
      seconds: time of all tokens but the first, which the prefill gives.
      cpu_seconds: processor time that the process used meanwhile, over all its threads.
    """

    tokens: list[int]
    seconds: float
    cpu_seconds: float


class Engine(Protocol):
    """An engine that has loaded the model."""

    precision: str
    """Precision as tables show it."""

    def decode(self, prompt: np.ndarray, new_tokens: int) -> Decoded:
        """Continues a prompt, int32 [P], greedily by `new_tokens`, whichever tokens come."""
        ...


class Stepwise:
    """An engine whose steps are called one by one from here."""

    def __init__(self, precision: str, step: Callable[[Sequence[int], int], int]):
        """Takes the step.

        Args:
          precision: as tables show it.
          step: (tokens, position of the first of them) -> the most likely next token. Position 0
            begins a new text.
        """
        self.precision = precision
        self._step = step

    def decode(self, prompt: np.ndarray, new_tokens: int) -> Decoded:
        """See `Engine.decode`."""
        tokens = [self._step(prompt.tolist(), 0)]
        start, cpu_start = time.perf_counter(), time.process_time()
        for position in range(len(prompt), len(prompt) + new_tokens - 1):
            tokens.append(self._step(tokens[-1:], position))
        return Decoded(tokens, time.perf_counter() - start, time.process_time() - cpu_start)


class Whole:
    """An engine that returns only whole texts: the time of one token is subtracted."""

    def __init__(self, precision: str, generate: Callable[[np.ndarray, int], list[int]]):
        """Takes the function that continues a prompt by a number of tokens."""
        self.precision = precision
        self._generate = generate

    def decode(self, prompt: np.ndarray, new_tokens: int) -> Decoded:
        """See `Engine.decode`."""
        first = self._timed(prompt, 1)
        whole = self._timed(prompt, new_tokens)
        return Decoded(
            whole.tokens,
            max(whole.seconds - first.seconds, 0.0),
            max(whole.cpu_seconds - first.cpu_seconds, 0.0),
        )

    def _timed(self, prompt: np.ndarray, new_tokens: int) -> Decoded:
        start, cpu_start = time.perf_counter(), time.process_time()
        tokens = self._generate(prompt, new_tokens)
        return Decoded(tokens, time.perf_counter() - start, time.process_time() - cpu_start)
