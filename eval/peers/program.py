"""Compare plain decoding and DART with other engines on this CPU, on the same weights.

    pip install 'dart-jax[peers]'
    python -m eval.peers
    python -m eval.peers --engine dart llama.cpp --new-tokens 64

Every engine decodes the same prompts greedily, one at a time, in a process of its own, by turns.
Those that are not installed are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.generation.defaults import length_bucket
from dart_jax.machine import available_cores
from dart_jax.programs.child import Child
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import report
from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from dart_jax.progress import tracked
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import resolve_dtype
from eval.benchmarks.prompts import demo_prompts
from eval.benchmarks.questions import prompt_tokens
from eval.benchmarks.registry import OWN, load_all
from eval.peers.engine import ENGINES, PLAIN, Decode, Setup

_FUNCTION = 128  # tokens of the longest function
_PAUSE = 0.02  # seconds in which threads of the last engine stop waiting in a loop for more work


@dataclasses.dataclass(frozen=True)
class PeersConfig(ModelChoice):
    """The model, the engines, and how to time them."""

    engine: tuple[str, ...] = tuple(ENGINES)
    """Engines, of plain, dart, transformers and llama.cpp; plain is always there. Those that lack a
    package or a part are left out."""
    prompts: int = 2
    """Questions of our own, or functions of each of the demo's four groups for a target without a
    chat template."""
    new_tokens: int = 128
    """Tokens that every engine writes for each prompt, whichever they are; the first one, which
    comes with the prefill, is not timed."""
    repeats: int = 3
    """Measured passes over all prompts, after one that compiles."""
    threads: int = dataclasses.field(default_factory=available_cores)
    """Cores of every engine; by default all."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.prompts, self.repeats, self.threads) < 1:
            raise UserError("--prompts, --repeats and --threads must be at least 1")
        if self.new_tokens < 2:
            raise UserError("--new-tokens must be at least 2: the first one is not timed")
        if self.threads > available_cores():
            raise UserError(f"--threads {self.threads}: only {available_cores()} cores are here")
        for name in self.engine:
            if name not in ENGINES:
                raise UserError(f"no engine {name!r}; pass some of {', '.join(ENGINES)}")


class Case(NamedTuple):
    """An engine in one precision."""

    engine: str
    precision: str


class Texts(NamedTuple):
    """What an engine wrote.

    Attributes:
      rates: tokens per second over all prompts, one value per repeat.
      tokens: [prompt], of the last repeat.
    """

    rates: list[float]
    tokens: list[list[int]]


class Peer(Child):
    """A process that has loaded an engine."""

    def load(self, setup: Setup) -> None:
        """Loads the model; raises UserError if the engine cannot."""
        self.call(_load, setup)

    def decode(self, prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        """As `engine.Decode`; raises UserError if the engine fails."""
        return self.call(_decode, prompt, new_tokens)


_loaded: list[Decode] = []  # of such a process


def _load(setup: Setup) -> None:
    module = importlib.import_module(f"eval.peers.{ENGINES[setup.name].module}")
    _loaded.append(module.load(setup))


def _decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
    return _loaded[0](prompt, new_tokens)


def measure(
    peers: Mapping[Case, Peer], prompts: Sequence[np.ndarray], config: PeersConfig, console: Console
) -> dict[Case, Texts]:
    """Decodes every prompt with every engine, in turn."""
    tokens: dict[Case, list[list[int]]] = {case: [] for case in peers}
    rates: dict[Case, list[float]] = {case: [] for case in peers}
    for repeat in tracked(range(config.repeats + 1), "measuring", console):
        seconds = dict.fromkeys(peers, 0.0)
        for case in peers:
            tokens[case] = []
        for prompt in prompts:
            for case, peer in peers.items():
                text, took = peer.decode(prompt, config.new_tokens)
                tokens[case].append(text)
                seconds[case] += took
                time.sleep(_PAUSE)
        if repeat:
            count = len(prompts) * (config.new_tokens - 1)
            for case in peers:
                rates[case].append(count / seconds[case] if seconds[case] else float("nan"))
    return {case: Texts(rates[case], tokens[case]) for case in peers}


def read_prompts(tokenizer: Tokenizer, count: int) -> list[np.ndarray]:
    """Returns the prompts, int32 [P] each."""
    if not tokenizer.chat_template:
        return [each.tokens for each in demo_prompts(tokenizer, count, _FUNCTION)]
    questions, _ = load_all(OWN.name, None, count)
    return [
        prompt_tokens(each, [], tokenizer, thinking=False)
        for some in questions.values()
        for each in some[:count]
    ]


def run(config: PeersConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    if jax.default_backend() != "cpu":
        raise UserError("the other engines run on CPUs here; set JAX_PLATFORMS=cpu")
    config = config.decided()
    target = hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    prompts = read_prompts(Tokenizer.load(target), config.prompts)
    length = length_bucket(max(map(len, prompts)) + config.new_tokens)
    peers: dict[Case, Peer] = {}
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dart_jax-") as logs, contextlib.ExitStack() as stack:
        for name in dict.fromkeys((PLAIN, *config.engine)):
            engine = ENGINES[name]
            pip, package = engine.package
            if importlib.util.find_spec(package) is None:
                left_out.append(f"{engine.title} is not installed: pip install {pip}")
                continue
            for precision in engine.precisions:
                log = Path(logs, f"{name}-{precision}")
                setup = Setup(name, precision, config, target, config.threads, length)
                peer = stack.enter_context(Peer(log))
                try:
                    peer.load(setup)
                    peer.decode(prompts[0], config.new_tokens)
                except UserError as error:
                    if name == PLAIN:
                        raise
                    left_out.append(f"{engine.title} {precision}: {error}")
                else:
                    peers[Case(name, precision or _own_precision(config))] = peer
        texts = measure(peers, prompts, config, console)
    for line in left_out:
        console.print(f"left out: {line}", highlight=False)
    console.print(_table(texts, config.new_tokens))
    if config.json:
        content = [{**case._asdict(), **each._asdict()} for case, each in texts.items()]
        write_json(config.json, report(config, left_out=left_out, measurements=content))


def _own_precision(config: PeersConfig) -> str:
    """The dtype of this project's weights, or their form in 8 bits."""
    return resolve_dtype(config.dtype).name if config.weights == "stored" else config.weights


def _table(texts: Mapping[Case, Texts], new_tokens: int) -> Any:
    """A row for each engine; the first, plain decoding, is the baseline."""
    plain, *_ = texts.values()
    rows = []
    for case, each in texts.items():
        ratios = [a / b for a, b in zip(each.rates, plain.rates, strict=True)]
        same = sum(a == b for a, b in zip(each.tokens, plain.tokens, strict=True))
        cells = [ENGINES[case.engine].title, case.precision, spread(each.rates)]
        rows.append([*cells, spread(ratios, ".2f", "x"), f"{same}/{len(each.tokens)}"])
    title = f"{len(plain.tokens)} prompts, {new_tokens} new tokens, batch 1, greedy"
    caption = (
        "tok/s: without the prefill; ratio: to plain decoding here; "
        "same: prompts with the tokens of plain decoding here"
    )
    return table(title, ("engine", "weights", "tok/s", "ratio", "same"), rows, caption)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(PeersConfig, args, __doc__), Console())
