"""The program `eval.peers`: runs the engines by turns, prints and writes the report."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax.engine.shapes import length_bucket
from dart_jax.errors import UserError, warn
from dart_jax.machine import available_cores
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from dart_jax.progress import tracked
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from eval.benchmarks.prompts import demo_prompts
from eval.benchmarks.questions import prompt_tokens
from eval.benchmarks.registry import load_all
from eval.peers.config import PeersConfig
from eval.peers.engine import ENGINES, PLAIN, Decode, Setup, check_installed

_PAUSE = 0.02  # seconds in which threads of the last engine stop waiting in a loop for more work


class Peer(ProcessPoolExecutor):
    """A process that has loaded an engine of `ENGINES`, by its name; `weights` is their dtype."""

    def __init__(self, setup: Setup):
        """Starts the process and loads the model; raises UserError if the engine cannot."""
        self.name, self._log = setup.name, setup.work / f"{setup.name}.log"
        context = multiprocessing.get_context("spawn")
        super().__init__(1, context, initializer=_begin, initargs=(self._log,))
        self.weights: str = self._call(_load, setup)

    def decode(self, prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        """As `engine.Decode`; raises UserError if the engine fails."""
        return self._call(_decode, prompt, new_tokens)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self.submit(function, *args).result()
        except UserError:
            raise
        except BrokenProcessPool:
            last = (self._log.read_text(errors="replace").split("\n") or [""])[-1]
            raise UserError(f"its process ended: {last}") from None
        except Exception as error:  # whatever a package raises
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"{type(error).__name__}: {first}") from None


_decodes: list[Decode] = []  # the one of such a process


def _begin(log: Path) -> None:
    """Writes what libraries print, also from C++, to the log; ends with the process that asks."""
    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _load(setup: Setup) -> str:
    weights, decode = ENGINES[setup.name].load(setup)
    _decodes.append(decode)
    return weights


def _decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
    return _decodes[0](prompt, new_tokens)


class Measurement(NamedTuple):
    """An engine's weights, tokens per second over all prompts and their ratios to plain decoding's
    by repeat, tokens of the last repeat by prompt, and how many prompts have plain decoding's."""

    engine: str
    weights: str
    rates: list[float]
    ratios: list[float]
    tokens: list[list[int]]
    same: int


def measure(
    peers: Sequence[Peer], prompts: Sequence[np.ndarray], config: PeersConfig, console: Console
) -> list[Measurement]:
    """Decodes every prompt with every engine, in turn; plain decoding is the first."""
    rates: list[list[float]] = [[] for _ in peers]
    for repeat in tracked(range(config.repeats + 1), "measuring", console):
        tokens: list[list[list[int]]] = [[] for _ in peers]
        seconds = [0.0] * len(peers)
        for prompt in prompts:
            for n, peer in enumerate(peers):
                text, time_of_text = peer.decode(prompt, config.new_tokens)
                tokens[n].append(text)
                seconds[n] += time_of_text
                time.sleep(_PAUSE)
        if repeat:
            count = len(prompts) * (config.new_tokens - 1)
            for n, total in enumerate(seconds):
                rates[n].append(count / total if total else float("nan"))
    measurements = []
    for peer, speeds, texts in zip(peers, rates, tokens, strict=True):
        ratios = [ours / theirs for ours, theirs in zip(speeds, rates[0], strict=True)]
        same = sum(ours == theirs for ours, theirs in zip(texts, tokens[0], strict=True))
        measurements.append(Measurement(peer.name, peer.weights, speeds, ratios, texts, same))
    return measurements


def read_prompts(config: PeersConfig, tokenizer: Tokenizer) -> list[np.ndarray]:
    """Returns the prompts, int32 [P] each."""
    questions, left_out = load_all(config.bench, tokenizer, config.data_dir, config.prompts)
    for reason in left_out:
        warn(reason)
    if not questions:
        return [each.tokens for each in demo_prompts(tokenizer, config.prompts)]
    every = itertools.chain(*questions.values())
    return [prompt_tokens(each, [], tokenizer, thinking=False) for each in every]


def run(config: PeersConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    if jax.default_backend() != "cpu":
        raise UserError("the other engines run on CPUs here; set JAX_PLATFORMS=cpu")
    cores = available_cores()
    counts = config.threads or (cores,)
    if max(counts) > cores:
        raise UserError(f"--threads {max(counts)}: only {cores} cores are here")
    config = config.decided()
    left_out: dict[str, None] = {}
    content: list[dict[str, object]] = []
    output: list[Table] = []
    with tempfile.TemporaryDirectory(prefix="dart_jax-") as work:
        for threads in counts:
            measurements, reasons = compare(config, threads, Path(work), console)
            left_out |= dict.fromkeys(reasons)
            output.append(_table(measurements, config, threads))
            console.print(output[-1])
            about = {"target": config.title, "threads": threads}
            content += [{**about, **each._asdict()} for each in measurements]
    for line in left_out:
        console.print(f"left out: {line}", highlight=False, soft_wrap=True)
    title = f"{config.title} in other engines"
    write_report(config, title, output, left_out=[*left_out], measurements=content)


def compare(
    config: PeersConfig, threads: int, work: Path, console: Console
) -> tuple[list[Measurement], list[str]]:
    """Returns the measurements on so many cores, and why engines were left out."""
    target = hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    prompts = read_prompts(config, Tokenizer.load(target))
    length = length_bucket(max(map(len, prompts)) + config.new_tokens)
    peers: list[Peer] = []
    left_out: list[str] = []
    names = list(dict.fromkeys((PLAIN, *config.engine)))
    with contextlib.ExitStack() as stack:
        for name in tracked(names, "loading the engines", console):
            setup = Setup(name, config, target, config.tree_nodes, threads, length, work)
            try:
                check_installed(name)
                peer = stack.enter_context(Peer(setup))
                peer.decode(prompts[0], 2)  # fails here if it cannot run the model
                peers.append(peer)
            except UserError as error:
                if name == PLAIN:
                    raise
                left_out.append(f"{ENGINES[name].title}: {error}")
        return measure(peers, prompts, config, console), left_out


def _table(measurements: Sequence[Measurement], config: PeersConfig, threads: int) -> Table:
    """Returns a row for each engine; the first is plain decoding."""
    prompts = len(measurements[0].tokens)
    rows = [
        (
            *(ENGINES[each.engine].title, each.weights, spread(each.rates)),
            *(spread(each.ratios, ".2f", "x"), f"{each.same}/{prompts}"),
        )
        for each in measurements
    ]
    title = (
        f"{config.title}: {prompts} prompts, {config.new_tokens} new tokens, batch 1, greedy, "
        f"{threads} threads"
    )
    caption = (
        "tok/s: without the prefill; ratio: to plain decoding here; "
        "same: prompts with the tokens of plain decoding here"
    )
    return table(title, ("engine", "weights", "tok/s", "ratio", "same"), rows, caption)
