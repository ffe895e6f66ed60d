"""Measure the time to the first text in a new process, with a cold and a warm compilation cache.

    python -m eval.startup

Loads a model and generates text, and starts the server, in new processes: once with an empty
compilation cache, then with the cache that the first ones filled.
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

from dart_jax.errors import UserError
from dart_jax.programs.child import Child
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from dart_jax.progress import tracked
from eval.serving.servers import start

PROMPT = "def mean(values):\n"
_TIMEOUT = 600  # seconds that the server may take for a text


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
    """Runs the stages in this process, in turn; returns their seconds."""
    tokens = config.max_new_tokens
    seconds = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - began
        return result

    model = timed("loading the model", config.load)
    generate = partial(model.generate, PROMPT, max_new_tokens=tokens)
    timed("first text", generate)
    timed("the same text again", generate)
    timed("another temperature: sampling", partial(generate, temperature=0.8))
    timed("and another", partial(generate, temperature=0.5))
    timed("twice the tokens: next bucket", partial(generate, max_new_tokens=2 * tokens))
    timed("streamed", lambda: list(model.stream(PROMPT, max_new_tokens=tokens)))
    return seconds


def server_stages(config: StartupConfig) -> dict[str, float]:
    """Starts a server; returns the seconds until it is ready, and of its first text."""
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


def in_new_processes(config: StartupConfig, cache: Path) -> dict[str, float]:
    """Runs `stages` in a new process with the compilation cache `cache`, and `server_stages`; adds
    the first process's imports."""
    parts = {"target": str(config.target_path), "drafter": config.main_drafter}
    # Paths, as the new process finds no other cache.
    config = dataclasses.replace(
        config, model="auto", **parts, ngram=config.ngram_model, no_ngram=False, json=None
    )
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(cache), HF_HOME=HF_HOME):
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        began = time.perf_counter()
        with Child() as child:
            seconds = child.call(stages, config)
            total = time.perf_counter() - began
        imports = {"starting Python, imports": total - sum(seconds.values())}
        return imports | seconds | server_stages(config)


def run(config: StartupConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    with tempfile.TemporaryDirectory() as directory:
        starts = range(config.repeats + 1)
        cold, *warm = (
            in_new_processes(config, Path(directory)) for _ in tracked(starts, "starting", console)
        )
    rows = [
        (name, f"{cold[name]:.2f}", spread([run[name] for run in warm], ".2f")) for name in cold
    ]
    console.print(table("Seconds in a new process", ("", "cold cache", "warm cache"), rows))
    write_report(config, cold=cold, warm=warm)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(StartupConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
