"""Seconds to the first text and memory of a new process, with a cold and a warm compilation cache.

python -m eval.scripts.startup --model smollm2
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from huggingface_hub.constants import HF_HOME
from rich.console import Console

from dart_jax.decoding.compilation import measure_compilation
from dart_jax.memory import peak_memory, resident_memory
from dart_jax.programs.child import Child
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from dart_jax.progress import tracked

PROMPT = "def mean(values):\n"
LONG, NEW = 2048, 64  # tokens of the text whose memory is measured, and of those the new ones


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


def stages(config: StartupConfig) -> dict[str, float]:
    """Loads the model and generates in this process; returns seconds, and programs compiled."""
    figures: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        figures[name] = time.perf_counter() - began
        return result

    with measure_compilation() as compilation:
        model = timed("loading the model", config.load)
        generate = partial(model.generate, PROMPT, max_new_tokens=config.max_new_tokens)
        timed("first text", generate)
    timed("the same text again", generate)
    timed("another temperature: sampling", partial(generate, temperature=0.8))
    figures["programs compiled for the first text"] = compilation.programs - compilation.read
    return figures


def memory(config: StartupConfig) -> dict[str, float]:
    """Writes a long text in this process; returns its resident memory in MB (10^6 bytes)."""
    taken: dict[str, int | None] = {"memory: imports": resident_memory()}
    model = config.load()
    taken["memory: the model is loaded"] = resident_memory()
    prompt = [0] * (min(LONG, model.target.max_length) - NEW)
    for _ in model.stream(prompt, max_new_tokens=NEW, eos_token_id=()):
        taken["memory: a long text is being written"] = resident_memory()
    taken["memory: peak"] = peak_memory()
    return {name: size / 1e6 for name, size in taken.items() if size is not None}


def in_new_processes(config: StartupConfig, cache: Path) -> dict[str, float]:
    """Measures new processes, and a server, with the compilation cache `cache`."""
    from eval.serving.servers import start  # imports what a process that generates does not need

    parts = {"target": str(config.target_path), "drafter": config.main_drafter}
    # Paths, as the new process finds no other cache.
    config = dataclasses.replace(
        config, model="auto", **parts, ngram=config.ngram_model, no_ngram=False, json=None
    )
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(cache), HF_HOME=HF_HOME):
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        with Child() as child:
            figures = child.call(stages, config)
        with Child() as child:
            figures |= child.call(memory, config)
        began = time.perf_counter()
        with start(config.words()):
            figures["the server is ready"] = time.perf_counter() - began
    return figures


def run(config: StartupConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    with tempfile.TemporaryDirectory() as directory:
        starts = tracked(range(config.repeats + 1), "starting", console)
        cold, *warm = (in_new_processes(config, Path(directory)) for _ in starts)
    rows = []
    for name in cold:
        form = ".0f" if name.startswith(("memory", "programs")) else ".2f"
        rows.append((name, f"{cold[name]:{form}}", spread([each[name] for each in warm], form)))
    title = "Seconds in a new process, and its resident memory in MB (10^6 bytes)"
    caption = f"The long text has {LONG:,} tokens, {NEW} of them new."
    printed = table(title, ("", "cold cache", "warm cache"), rows, caption)
    console.print(printed)
    write_report(config, f"Start of {config.title}", [printed], cold=cold, warm=warm)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(StartupConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
