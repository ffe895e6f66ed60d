"""The program `eval.peers`: runs the engines by turns, prints and writes the report."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax.engine.shapes import length_bucket
from dart_jax.errors import UserError
from dart_jax.machine import available_cores, end_with_parent
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.tables import spread, table
from dart_jax.progress import stage
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from eval.benchmarks.prompts import first_prompts
from eval.methods.decoding import Generation
from eval.methods.measure import Summary, measure, summarize
from eval.peers.config import PeersConfig
from eval.peers.engine import ENGINES, LLAMA, PLAIN, Decode, Setup, llama_build

_PAUSE = 0.02  # seconds in which threads of the last engine stop waiting in a loop for more work


class Peer(ProcessPoolExecutor):
    """A process that has loaded an engine of `ENGINES`; `weights` is their dtype."""

    def __init__(self, setup: Setup):
        """Starts the process and loads the model; raises UserError if the engine cannot."""
        self._log = setup.work / f"{setup.name}.log"
        context = multiprocessing.get_context("spawn")
        super().__init__(1, context, initializer=_begin, initargs=(self._log,))
        self.weights: str = self._call(_load, setup)

    def __call__(
        self, prompts: Sequence[np.ndarray], max_new_tokens: int, seed: int = 0
    ) -> Generation:
        """Continues a prompt; raises UserError if the engine fails."""
        time.sleep(_PAUSE)
        return self._call(_decode, prompts[0], max_new_tokens)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self.submit(function, *args).result()
        except UserError:
            raise
        except BrokenProcessPool:
            lines = self._log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise UserError(f"its process ended: {lines[-1]}") from None
        except Exception as error:  # anything that a package raises
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"{type(error).__name__}: {first}") from None


_decodes: list[Decode] = []  # the one of such a process


def _begin(log: Path) -> None:
    """Writes what libraries print, also from C++, to the log; ends with the process that asks."""
    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    end_with_parent()


def _load(setup: Setup) -> str:
    weights, decode = ENGINES[setup.name].load(setup)
    _decodes.append(decode)
    return weights


def _decode(prompt: np.ndarray, new_tokens: int) -> Generation:
    return _decodes[0](prompt, new_tokens)


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
            summaries, weights, reasons = compare(config, threads, Path(work), console)
            left_out |= dict.fromkeys(reasons)
            output.append(_table(summaries, weights, config, threads))
            console.print(output[-1])
            content += [
                {"engine": name, "weights": weights[name], "threads": threads, **row.as_json()}
                for name, row in summaries.items()
            ]
    for line in left_out:
        console.print(f"left out: {line}", highlight=False, markup=False, soft_wrap=True)
    title = f"{config.title} in other engines"
    found: dict[str, object] = {"left_out": [*left_out], "measurements": content}
    if LLAMA in config.engine and importlib.util.find_spec("llama_cpp"):
        found["llama.cpp"] = llama_build()
    write_report(config, title, output, **found)


def compare(
    config: PeersConfig, threads: int, work: Path, console: Console
) -> tuple[dict[str, Summary], dict[str, str], list[str]]:
    """Returns the engines' results and the dtypes of their weights, on `threads` cores, and why
    engines were left out."""
    target = hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    prompts = first_prompts(config.bench, Tokenizer.load(target), config.data_dir, config.prompts)
    length = length_bucket(max(len(each.tokens) for each in prompts) + config.new_tokens)
    peers: dict[str, Peer] = {}
    left_out: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys((PLAIN, *config.engine)):
            setup = Setup(name, config, target, config.tree_nodes, threads, length, work)
            try:
                ENGINES[name].check()
                with stage(f"loading {ENGINES[name].title}", console):
                    peer = stack.enter_context(Peer(setup))
                    peer([prompts[0].tokens], 2)  # fails here if it cannot run the model
                peers[name] = peer
            except UserError as error:
                if name == PLAIN:
                    raise
                left_out.append(f"{ENGINES[name].title}: {error}")
        with stage("measuring", console):
            batches = [[prompt] for prompt in prompts]
            new, repeats = config.new_tokens, config.repeats
            runs = measure(peers, batches, max_new_tokens=new, repeats=repeats, seed=0)
    summaries = {name: summarize(runs, name, PLAIN) for name in peers}
    return summaries, {name: peer.weights for name, peer in peers.items()}, left_out


def _table(
    summaries: Mapping[str, Summary], weights: Mapping[str, str], config: PeersConfig, threads: int
) -> Table:
    """Returns a row for each engine; the first is plain decoding."""
    rows = [
        (
            *(ENGINES[name].title, weights[name], spread([1 / x for x in row.token_seconds])),
            *(spread(row.decoding_speedups, ".2f", "x"), f"{row.identical}/{row.prompts}"),
        )
        for name, row in summaries.items()
    ]
    title = (
        f"{config.title}: {summaries[PLAIN].prompts} prompts, {config.new_tokens} new tokens, "
        f"batch 1, greedy, {threads} threads"
    )
    caption = (
        "tok/s: without the prefill; ratio: to plain decoding here; "
        "same: prompts with the tokens of plain decoding here"
    )
    return table(title, ("engine", "weights", "tok/s", "ratio", "same"), rows, caption)
