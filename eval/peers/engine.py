"""The engines, by name; what each is given, and what it returns.

To add one, add a file here with a function `load` from a `Setup` to a `Loaded`, and an entry in
`ENGINES`. CTranslate2, ONNX Runtime and OpenVINO, which convert or trace a model before they run
it, were measured once (docs/performance.md), and slower than llama.cpp.
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
      packages: what must be installed, name for pip -> name for import.
      precisions: those that it is measured in; `own` for that of the options.
    """

    title: str
    module: str
    packages: dict[str, str]
    precisions: tuple[str, ...] = ("float32",)


PLAIN = "plain"
_TORCH = {"torch": "torch", "transformers": "transformers"}
_LLAMA_CPP = {"llama-cpp-python": "llama_cpp"}
ENGINES = {
    PLAIN: Engine("dart_jax, plain", "own", {}, ("own",)),
    "dart": Engine("dart_jax, DART", "own", {}, ("own",)),
    "transformers": Engine("PyTorch", "torch_model", _TORCH, ("float32", "bfloat16")),
    "compiled": Engine("PyTorch, compiled", "torch_model", _TORCH),
    "lookup": Engine("PyTorch, prompt lookup", "torch_model", _TORCH),
    "assisted": Engine("PyTorch, assisted", "torch_model", _TORCH),
    "llama.cpp": Engine(
        "llama.cpp", "llama_cpp", _LLAMA_CPP, ("stored", "float32", "float16", "bfloat16")
    ),
}


class Setup(NamedTuple):
    """The model that an engine runs, and its resources.

    Attributes:
      name: the engine, of `ENGINES`.
      precision: of its weights and arithmetic.
      model: the options that choose the model.
      target: directory of the target, from `hub.resolve`.
      draft_model: directory or hub repository of a small model, for `assisted`.
      tree_nodes: nodes of DART's draft trees; None for as many as pay.
      threads: cores that it may use.
      max_length: prompt and new tokens together, at most.
      work: directory for files of its own; exists, and is deleted at the end.
    """

    name: str
    precision: str
    model: ModelChoice
    target: Path
    draft_model: str | None
    tree_nodes: int | None
    threads: int
    max_length: int
    work: Path


class Loaded(NamedTuple):
    """An engine that has loaded the model: its precision, as tables show it, and its decoding."""

    precision: str
    decode: Decode


def stepwise(step: Callable[[Sequence[int], int], int]) -> Decode:
    """Returns the decoding of an engine whose steps are called one by one from here.

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


def whole(generate: Callable[[np.ndarray, int], list[int]]) -> Decode:
    """Returns the decoding of an engine that returns whole texts only: the time of one token is
    subtracted."""

    def decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        start = time.perf_counter()
        generate(prompt, 1)
        middle = time.perf_counter()
        tokens = generate(prompt, new_tokens)
        return tokens, max(time.perf_counter() - 2 * middle + start, 0.0)

    return decode
