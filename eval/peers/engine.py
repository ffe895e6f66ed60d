"""The engines, by name; what each is given, and what it returns.

To add one, add a file here with a function `load` from a `Setup` to a `Loaded`, and an entry in
`ENGINES`. torch.compile, CTranslate2, ONNX Runtime and OpenVINO, which convert or trace a model
before they run it, were slower than llama.cpp.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dart_jax.errors import UserError
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
    """

    title: str
    module: str
    packages: dict[str, str]


PLAIN = "plain"
LLAMA, LLAMA_LOOKUP = "llama.cpp", "llama.cpp-lookup"
_TORCH = {"torch": "torch", "transformers": "transformers"}
_LLAMA_CPP = {"llama-cpp-python": "llama_cpp"}
ENGINES = {
    PLAIN: Engine("dart_jax, plain", "own", {}),
    "dart": Engine("dart_jax, DART", "own", {}),
    "transformers": Engine("PyTorch", "torch_model", _TORCH),
    "lookup": Engine("PyTorch, prompt lookup", "torch_model", _TORCH),
    LLAMA: Engine("llama.cpp", "llama_cpp", _LLAMA_CPP),
    LLAMA_LOOKUP: Engine("llama.cpp, prompt lookup", "llama_cpp", _LLAMA_CPP),
}


class Setup(NamedTuple):
    """The model that an engine runs, and its resources.

    Attributes:
      name: the engine, of `ENGINES`.
      model: the options that choose the model.
      target: directory of the target, from `hub.resolve`.
      tree_nodes: nodes of DART's draft trees; None for as many as pay.
      threads: cores that it may use.
      max_length: prompt and new tokens together, at most.
      work: directory for its log; exists, and is deleted at the end.
    """

    name: str
    model: ModelChoice
    target: Path
    tree_nodes: int | None
    threads: int
    max_length: int
    work: Path


class Loaded(NamedTuple):
    """An engine that has loaded the model: the dtype of its weights, as tables show it, and its
    decoding."""

    weights: str
    decode: Decode


def check_installed(name: str) -> None:
    """Raises UserError if a package of an engine of `ENGINES` is missing; says what to install."""
    packages = ENGINES[name].packages
    missing = [pip for pip, package in packages.items() if not importlib.util.find_spec(package)]
    if missing:
        raise UserError(f"not installed: pip install {' '.join(missing)}")


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
