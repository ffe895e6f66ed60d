"""Compare plain decoding and DART with other engines on this CPU, on the same weights.

    pip install 'dart-jax[peers]'
    python -m eval.peers
    python -m eval.peers --engine dart llama.cpp --new-tokens 64
    python -m eval.peers --engine llama.cpp --shape qwen3-0.6b --quantize Q8_0 Q4_K --threads 1 2

Every engine decodes the same prompts greedily, one at a time, in a process of its own, by turns.
Those that are not installed are left out. --quantize compares on a GGUF file's weights in other
types, --shape on random ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError, warn
from dart_jax.generation.defaults import length_bucket
from dart_jax.machine import available_cores
from dart_jax.models.kernels.tiles import BLOCK_TYPES
from dart_jax.programs.child import Child
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from dart_jax.progress import stage, tracked
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.gguf.tensors import gguf_files
from eval.benchmarks.prompts import demo_prompts
from eval.benchmarks.questions import prompt_tokens
from eval.benchmarks.registry import check_bench, load_all
from eval.latency.shapes import target_of
from eval.peers.engine import ENGINES, LLAMA, PLAIN, Decode, Loaded, Setup, check_installed
from eval.peers.llama_cpp import quantize
from eval.peers.random_target import write_random

_PATIENCE = 5.0  # seconds in which an engine's process may end by itself
_PAUSE = 0.02  # seconds in which threads of the last engine stop waiting in a loop for more work


@dataclasses.dataclass(frozen=True)
class PeersConfig(ModelChoice):
    """The model, the engines, and how to time them."""

    engine: tuple[str, ...] = tuple(ENGINES)
    """Engines, of plain, dart, transformers, lookup (transformers with its prompt lookup), and
    llama.cpp, for GGUF targets; plain is always there. Those that lack a package or a part are left
    out."""
    bench: str | None = None
    """Benchmarks or files, as for eval.speedup, of which the first turns are answered."""
    data_dir: Path | None = None
    """Directory of the benchmarks' files; by default they come from the Hugging Face hub."""
    prompts: int = 2
    """Questions of each benchmark, or functions of each of the demo benchmark's four groups."""
    new_tokens: int = 128
    """Tokens that every engine writes for each prompt, whichever they are; the first one, which
    comes with the prefill, is not timed."""
    repeats: int = 3
    """Measured passes over all prompts, after one that compiles."""
    threads: tuple[int, ...] = ()
    """Cores of every engine, one or more numbers of them; by default all of the machine's."""
    shape: str | None = None
    """Instead of --model, random weights in a dense shape of eval.latency, such as qwen3-0.6b, as a
    GGUF file in bfloat16, with the demo's tokenizer; for engines without drafts."""
    quantize: tuple[str, ...] = ()
    """Types, such as Q8_0 and Q4_K, to which llama.cpp's quantiser converts the GGUF target; the
    engines are compared on each. By default on the target as it is."""
    tree_nodes: int | None = None
    """Nodes of DART's draft trees; by default as many as pay, step by step."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, prompts=1, repeats=1, threads=1, tree_nodes=1)
        if self.new_tokens < 2:
            raise UserError("--new-tokens must be at least 2: the first one is not timed")
        check_bench(self.bench)
        for name in self.engine:
            if name not in ENGINES:
                raise UserError(f"no engine {name!r}; pass some of {', '.join(ENGINES)}")
        for type in self.quantize:
            if type not in BLOCK_TYPES:
                raise UserError(f"no type {type!r}; pass some of {', '.join(sorted(BLOCK_TYPES))}")
        if self.shape is not None:
            target_of(self.shape)
            if self.model != "auto" or self.target is not None:
                raise UserError("--shape brings its own target; do not pass another")


class Peer(Child):
    """A process that has loaded an engine.

    Attributes:
      name: the engine, of `ENGINES`.
      weights: their dtype, as tables show it.
    """

    def __init__(self, setup: Setup):
        """Starts the process and loads the model; raises UserError if the engine cannot."""
        super().__init__(setup.work / f"{setup.name}.log")
        self.name = setup.name
        try:
            self.weights: str = self.call(_load, setup)
        except BaseException:
            self.__exit__()
            raise

    def decode(self, prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        """As `engine.Decode`; raises UserError if the engine fails."""
        return self.call(_decode, prompt, new_tokens)

    def __exit__(self, *error: object) -> None:
        """Lets the process end by itself, if it does, so that libraries release what they hold."""
        self._pipe.close()
        self._process.join(_PATIENCE)
        super().__exit__(*error)


_decodes: list[Decode] = []  # the one of such a process


def _load(setup: Setup) -> str:
    module = importlib.import_module(f"eval.peers.{ENGINES[setup.name].module}")
    loaded: Loaded = module.load(setup)
    _decodes.append(loaded.decode)
    return loaded.weights


def _decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
    return _decodes[0](prompt, new_tokens)


class Measurement(NamedTuple):
    """The texts of an engine, and its speed.

    Attributes:
      engine: its name.
      weights: their dtype, as tables show it.
      rates: tokens per second over all prompts, one value per repeat.
      ratios: of these to plain decoding's.
      tokens: [prompt], of the last repeat.
      same: prompts with the tokens of plain decoding.
    """

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
    return [
        Measurement(
            peer.name,
            peer.weights,
            rates[n],
            [ours / theirs for ours, theirs in zip(rates[n], rates[0], strict=True)],
            tokens[n],
            sum(ours == theirs for ours, theirs in zip(tokens[n], tokens[0], strict=True)),
        )
        for n, peer in enumerate(peers)
    ]


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
    left_out: dict[str, None] = {}
    content: list[dict[str, object]] = []
    output: list[Table] = []
    with tempfile.TemporaryDirectory(prefix="dart_jax-") as work:
        for name, choice in targets(config, Path(work), console):
            for threads in counts:
                measurements, reasons = compare(choice, threads, Path(work), console)
                left_out |= dict.fromkeys(reasons)
                output.append(_table(measurements, name, config.new_tokens, threads))
                console.print(output[-1])
                about = {"target": name, "threads": threads}
                content += [{**about, **each._asdict()} for each in measurements]
    for line in left_out:
        console.print(f"left out: {line}", highlight=False, soft_wrap=True)
    title = f"{config.shape or config.title} in other engines"
    write_report(config, title, output, left_out=[*left_out], measurements=content)


def targets(config: PeersConfig, work: Path, console: Console) -> Iterator[tuple[str, PeersConfig]]:
    """Yields what tables call a target, and the options that choose it, for each target to compare
    on. Those that are made lie in the directory `work`, until the next one.

    Raises:
      UserError: a target cannot be made.
    """
    name = config.shape or config.title
    if config.shape is not None:
        path = work / "random.gguf"
        write_random(path, target_of(config.shape), console)
        config = dataclasses.replace(config, shape=None, target=_directory(path))
    config = config.decided()
    if not config.quantize:
        yield name, config
        return
    check_installed(LLAMA)
    directory = hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    sources = gguf_files(directory)
    if not sources:
        raise UserError("--quantize takes GGUF targets; llama.cpp's own tools convert others")
    parts = {"drafter": config.main_drafter, "ngram": config.ngram_model}
    for type in config.quantize:
        path = work / f"{type}.gguf"
        with Child(work / "quantize.log") as child, stage(f"converting to {type}", console):
            child.call(quantize, sources[0], path, type, available_cores())
        options = {"model": "auto", "target": _directory(path), "revision": None, **parts}
        yield f"{name} in {type}", dataclasses.replace(config, **options)
        path.unlink()


def _directory(path: Path) -> str:
    """Moves the directory of a GGUF file from the user's cache to the file, with which it goes."""
    return str(shutil.move(hub.resolve(path, patterns=hub.TARGET), path.with_suffix("")))


def compare(
    config: PeersConfig, threads: int, work: Path, console: Console
) -> tuple[list[Measurement], list[str]]:
    """Measures the engines on one target, each on so many cores.

    Returns:
      The measurements, and why engines were left out.
    """
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


def _table(
    measurements: Sequence[Measurement], target: str, new_tokens: int, threads: int
) -> Table:
    """Returns a row for each engine; the first is plain decoding."""
    prompts = len(measurements[0].tokens)
    rows = [
        (
            ENGINES[each.engine].title,
            each.weights,
            spread(each.rates),
            spread(each.ratios, ".2f", "x"),
            f"{each.same}/{prompts}",
        )
        for each in measurements
    ]
    title = (
        f"{target}: {prompts} prompts, {new_tokens} new tokens, batch 1, greedy, {threads} threads"
    )
    caption = (
        "tok/s: without the prefill; ratio: to plain decoding here; "
        "same: prompts with the tokens of plain decoding here"
    )
    return table(title, ("engine", "weights", "tok/s", "ratio", "same"), rows, caption)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(PeersConfig, args, __doc__), Console())
