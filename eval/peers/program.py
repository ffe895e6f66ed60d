"""Compare plain decoding and DART with other engines on this CPU, on the same weights.

    pip install 'dart-jax[peers]'
    python -m eval.peers
    python -m eval.peers --engine dart llama.cpp --new-tokens 64

Every engine decodes the same prompts greedily, one at a time, in a process of its own, by turns.
Those that are not installed are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from dart_jax.errors import UserError, warn
from dart_jax.generation.defaults import length_bucket
from dart_jax.machine import available_cores
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment
from dart_jax.progress import progress_bar
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from eval.benchmarks.prompts import demo_prompts, warm_up_prompts
from eval.benchmarks.questions import prompt_tokens
from eval.benchmarks.registry import OWN, load_all
from eval.peers.config import PeersConfig
from eval.peers.measurement import Measurement, Peers
from eval.peers.registry import ENGINES
from eval.peers.report import as_json, table, versions

# Tokens of the longest function.
_FUNCTION = 128


def run(config: PeersConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    if jax.default_backend() != "cpu":
        raise UserError("the other engines run on CPUs here; set JAX_PLATFORMS=cpu")
    if config.threads is not None and config.threads > available_cores():
        raise UserError(f"--threads {config.threads}: only {available_cores()} cores are here")
    config = config.decided()
    target = hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    tokenizer = Tokenizer.load(target)
    prompts, warm_up = _prompts(config, tokenizer)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    with tempfile.TemporaryDirectory(prefix="dart_jax-") as work:
        length = length_bucket(max(map(len, [*prompts, warm_up])) + config.new_tokens)
        with Peers(config, target, Path(work), length) as peers:
            measured = _measure(peers, prompts, warm_up, config.repeats, console)
            for reason in peers.left_out:
                console.print(f"left out: {reason}", highlight=False)
    console.print(", ".join(f"{k} {v}" for k, v in versions(measured).items()))
    console.print(table(measured, len(prompts)))
    if config.json:
        write_json(config.json, as_json(config, measured, peers.left_out))


def _prompts(config: PeersConfig, tokenizer: Tokenizer) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the prompts, and one to warm up with, int32 [P] each."""
    if config.bench is None and not tokenizer.chat_template:
        prompts = [each.tokens for each in demo_prompts(tokenizer, config.prompts, _FUNCTION)]
        warm_up = [each.tokens for each in warm_up_prompts(tokenizer, 1, _FUNCTION)]
        return prompts, (warm_up or prompts)[0]
    found, left_out = load_all(config.bench or OWN.name, config.data_dir, config.prompts + 1)
    for reason in left_out:
        warn(reason)
    questions = [
        [prompt_tokens(each, [], tokenizer, thinking=False) for each in some]
        for some in found.values()
    ]
    return [each for some in questions for each in some[: config.prompts]], questions[0][-1]


def _measure(
    peers: Peers, prompts: Sequence, warm_up, repeats: int, console: Console
) -> list[Measurement]:
    wanted = peers.wanted
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(wanted))
        for name, precision in wanted:
            progress.update(task, description=f"starting {ENGINES[name].title}")
            peers.start(name, precision, warm_up)
            progress.advance(task)
        progress.remove_task(task)
        task = progress.add_task("measuring", total=len(prompts) * repeats)
        return peers.measure(prompts, lambda: progress.advance(task))


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(PeersConfig, args, __doc__), Console())
