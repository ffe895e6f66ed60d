"""The engines, by name; what each is given, and what it returns.

To add one, add a file here with a function `load` from a `Setup` to a `Decode`, and an entry in
`ENGINES`. CTranslate2, ONNX Runtime and OpenVINO, which convert or trace a model before they run
it, were measured once (docs/performance.md) and slower than llama.cpp, which needs no conversion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dart_jax.programs.model_choice import ModelChoice

# (prompt, int32 [P]; number of new tokens) -> the new tokens, greedily and whichever they are, and
# the seconds of all but the first, which the prefill gives.
Decode = Callable[[np.ndarray, int], tuple[list[int], float]]


class Engine(NamedTuple):
    """An engine.

    Attributes:
      title: in tables.
      module: its file in `eval.peers`.
      package: what must be installed, for pip and for import.
      precisions: those that it is measured in; empty for that of the options.
    """

    title: str
    module: str
    package: tuple[str, str]
    precisions: tuple[str, ...] = ("",)


_OURS, _TORCH = ("dart-jax", "dart_jax"), ("torch", "torch")
PLAIN = "plain"
ENGINES = {
    PLAIN: Engine("dart_jax, plain", "own", _OURS),
    "dart": Engine("dart_jax, DART", "own", _OURS),
    "transformers": Engine("PyTorch", "torch_model", _TORCH, ("float32", "bfloat16")),
    "llama.cpp": Engine("llama.cpp", "llama_cpp", ("llama-cpp-python", "llama_cpp"), ("stored",)),
}


class Setup(NamedTuple):
    """What an engine runs, and how.

    Attributes:
      name: the engine, of `ENGINES`.
      precision: of its weights and arithmetic.
      model: the options that choose the model.
      target: directory of the target, from `hub.resolve`.
      threads: cores that it may use.
      max_length: prompt and new tokens together, at most.
    """

    name: str
    precision: str
    model: ModelChoice
    target: Path
    threads: int
    max_length: int


def stepwise(step: Callable[[Sequence[int], int], int]) -> Decode:
    """Returns the `Decode` of an engine whose steps are called one by one from here.

    Args:
      step: (tokens, position of the first of them) -> the most likely next token. Position 0 begins
        a new text.
    """

    def decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        tokens = [step(prompt.tolist(), 0)]
        start = time.perf_counter()
        for position in range(len(prompt), len(prompt) + new_tokens - 1):
            tokens.append(step(tokens[-1:], position))
        return tokens, time.perf_counter() - start

    return decode
