"""Measure the time to the first text in a new process, with a cold and a warm compilation cache,
and the memory that it takes.

    python -m eval.startup

Loads a model and generates text, starts the server, and writes a text of 2,048 tokens, in new
processes: once with an empty compilation cache, then with the cache that the first ones filled.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from huggingface_hub.constants import HF_HOME
from rich.console import Console

from dart_jax.decoding.compilation import measure_compilation
from dart_jax.errors import UserError
from dart_jax.memory import peak_memory, resident_memory
from dart_jax.programs.child import Child
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from dart_jax.progress import tracked
from dart_jax.weights import hub
from dart_jax.weights.gguf.tensors import INDEX

PROMPT = "def mean(values):\n"
_TIMEOUT = 600  # seconds that the server may take for a text
LONG, _NEW = 2048, 64  # tokens of the text whose memory is measured, and of those the new ones
_MEGABYTE = 10**6


@dataclasses.dataclass(frozen=True)
class StartupConfig(ModelChoice):
    """The model, and how often to start it."""

    max_new_tokens: int = 100
    """Tokens to generate."""
    repeats: int = 3
    """Processes measured with a warm cache."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, repeats=1)


def stages(config: StartupConfig) -> tuple[dict[str, float], int]:
    """Runs the stages in this process, in turn; returns their seconds, and how many programs were
    compiled to load the model and for the first text."""
    tokens = config.max_new_tokens
    seconds = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - began
        return result

    with measure_compilation() as compilation:
        model = timed("loading the model", config.load)
        generate = partial(model.generate, PROMPT, max_new_tokens=tokens)
        timed("first text", generate)
    timed("the same text again", generate)
    timed("another temperature: sampling", partial(generate, temperature=0.8))
    timed("and another", partial(generate, temperature=0.5))
    timed("twice the tokens: next bucket", partial(generate, max_new_tokens=2 * tokens))
    timed("streamed", lambda: list(model.stream(PROMPT, max_new_tokens=tokens)))
    return seconds, compilation.programs - compilation.read


def server_stages(config: StartupConfig) -> dict[str, float]:
    """Starts a server; returns the seconds until it is ready, and of its first text."""
    from eval.serving.servers import start  # imports what a process that generates does not need

    began = time.perf_counter()
    with start(config.words()) as (url, _):
        ready = time.perf_counter()
        body = {"prompt": PROMPT, "max_tokens": config.max_new_tokens, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), headers
        )
        try:
            urllib.request.urlopen(request, timeout=_TIMEOUT).read()
        except OSError as error:  # urllib's errors are
            raise UserError(f"the server gives no text: {error}") from error
        ended = time.perf_counter()
    return {"the server is ready": ready - began, "its first text": ended - ready}


def memory(config: StartupConfig) -> dict[str, float]:
    """Loads the model and writes a long text in this process; returns the resident memory after
    each stage, at the text's last token, and its peak, in MB (10^6 bytes). Systems but Linux only
    tell the peak."""
    taken: dict[str, int | None] = {"memory: imports": resident_memory()}
    model = config.load()
    taken["memory: the model is loaded"] = resident_memory()
    prompt = [0] * (min(LONG, model.target.max_length) - _NEW)
    for _ in model.stream(prompt, max_new_tokens=_NEW, eos_token_id=()):
        taken["memory: a long text is being written"] = resident_memory()
    taken["memory: peak"] = peak_memory()
    return {name: size / _MEGABYTE for name, size in taken.items() if size is not None}


def stored(target: str | Path) -> int:
    """The size of a target's files of weights, in bytes."""
    path = Path(target)
    if path.is_file():
        return path.stat().st_size
    directory = hub.resolve(target, patterns=hub.TARGET)
    index, suffixes = directory / INDEX, (".safetensors", ".bin")
    files = [path for path in directory.iterdir() if path.suffix in suffixes]
    if index.is_file():
        files = map(Path, json.loads(index.read_text())["files"])
    return sum(path.stat().st_size for path in files)


def in_new_processes(config: StartupConfig, cache: Path) -> dict[str, float]:
    """Runs `stages`, `memory` and `server_stages` in new processes with the compilation cache
    `cache`; adds the first process's imports."""
    parts = {"target": str(config.target_path), "drafter": config.main_drafter}
    # Paths, as the new process finds no other cache.
    config = dataclasses.replace(
        config, model="auto", **parts, ngram=config.ngram_model, no_ngram=False, json=None
    )
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(cache), HF_HOME=HF_HOME):
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        began = time.perf_counter()
        with Child() as child:
            seconds, compiled = child.call(stages, config)
            total = time.perf_counter() - began
        imports = {"starting Python, imports": total - sum(seconds.values())}
        with Child() as child:
            taken = child.call(memory, config)
        programs = {"programs compiled for the first text": compiled}
        return imports | seconds | server_stages(config) | taken | programs


def run(config: StartupConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    with tempfile.TemporaryDirectory() as directory:
        starts = range(config.repeats + 1)
        cold, *warm = (
            in_new_processes(config, Path(directory)) for _ in tracked(starts, "starting", console)
        )
    rows = []
    for name in cold:
        form = ".0f" if name.startswith(("memory", "programs")) else ".2f"
        rows.append((name, f"{cold[name]:{form}}", spread([run[name] for run in warm], form)))
    title = "Seconds in a new process, and its resident memory in MB (10^6 bytes)"
    size = stored(config.target_path)
    caption = (
        f"The long text has {LONG:,} tokens, {_NEW} of them new; the target's files have "
        f"{size / _MEGABYTE:,.0f} MB."
    )
    printed = table(title, ("", "cold cache", "warm cache"), rows, caption)
    console.print(printed)
    title = f"Start of {config.title}"
    write_report(config, title, [printed], cold=cold, warm=warm, stored=size)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(StartupConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
