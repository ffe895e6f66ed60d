"""How long the first text takes in a new process, and how much of it compiled programs save.

    python -m eval.startup

loads a model and generates, in processes of their own: once with an empty compilation cache, then
with what the first process left there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from huggingface_hub.constants import HF_HOME
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dart_jax.errors import UserError, one_line_errors
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment

PROMPT = "def mean(values):\n"


@dataclasses.dataclass(frozen=True)
class StartupConfig(ModelChoice):
    """Which model, and how often."""

    max_new_tokens: int = 100
    """Tokens of the text."""
    repeats: int = 3
    """Warm processes measured."""
    json: Path | None = None
    """Write everything measured to this file."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise UserError("--repeats must be at least 1")


def stages(config: StartupConfig) -> dict[str, float]:
    """Seconds of what a new process does, in turn; in this process."""
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


def in_new_process(config: StartupConfig, cache: Path) -> dict[str, float]:
    """`stages` in a process whose compilation cache lies in `cache`; imports count too."""
    asked = json.dumps(dataclasses.asdict(dataclasses.replace(config, json=None)))
    environ = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environ |= {"XDG_CACHE_HOME": str(cache), "HF_HOME": HF_HOME}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "eval.startup", "--child", asked],
        env=environ,
        capture_output=True,
        text=True,
    )
    total = time.perf_counter() - began
    if done.returncode:
        raise UserError((done.stderr.strip().splitlines() or ["no output"])[-1])
    seconds = json.loads(done.stdout.splitlines()[-1])
    return {"starting Python, imports": total - sum(seconds.values()), **seconds}


def run(config: StartupConfig, console: Console) -> None:
    """Measures and reports."""
    check_outputs(config.json)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory)
        runs = [
            in_new_process(config, cache)
            for _ in track(range(config.repeats + 1), "starting", console=console, transient=True)
        ]
        stored = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    cold, warm = runs[0], runs[1:]
    table = Table(title="Seconds in a new process", title_justify="left")
    for column in ("", "cold cache", "warm cache"):
        table.add_column(column, justify="right" if column else "left")
    for stage in cold:
        values = [run[stage] for run in warm]
        spread = (max(values) - min(values)) / 2
        table.add_row(stage, f"{cold[stage]:.2f}", f"{statistics.median(values):.2f} ±{spread:.2f}")
    console.print(table)
    console.print(f"the cache holds {stored / 1e6:.1f} MB")
    if config.json:
        content = {"cold": cold, "warm": warm, "bytes": stored}
        write_json(config.json, {"environment": environment(), **content})


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    args = sys.argv[1:] if args is None else args
    with one_line_errors():
        if args[:1] == ["--child"]:
            print(json.dumps(stages(StartupConfig(**json.loads(args[1])))))
            return
        run(tyro.cli(StartupConfig, args=args, description=__doc__), Console())


if __name__ == "__main__":
    main()
