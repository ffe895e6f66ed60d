"""The program `eval.campaign`: its options, the parts one after another, and their report."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from dart_jax.errors import UserError, meant
from dart_jax.files import check_writable, write_atomically
from dart_jax.programs.tables import table
from eval.campaign.parts import CPU_PARTS, GPU_PARTS, TRAINING, Part

MEASURED = "measured"
_ROOT = Path(__file__).parents[2]  # where the parts run
_PATIENCE = 30.0  # seconds that a part which is stopped may take to end
_WIDTH = 160  # columns of the report's tables


@dataclasses.dataclass(frozen=True)
class CampaignConfig:
    """Place and time of a campaign."""

    out: Path
    """Directory of the report, the parts' reports and their logs."""
    minutes: float = 30.0
    """Time for all parts; the one that runs then is stopped."""
    only: tuple[str, ...] = ()
    """Parts to measure, by default all: methods, lossless, qwen3-1.7b, qwen3-8b, latency-1.7b,
    latency-8b, batches, server, training, trained; with --cpu questions, benchmarks, llama-cpp,
    llama-cpp-q4_0, llama-cpp-q8_0, llama-cpp-f16, torch, sampled, schema, copying,
    copying-qwen2.5-coder-0.5b, copying-gemma-3-270m, server, lossless, lossless-bfloat16."""
    cpu: bool = False
    """Measure on a CPU what README.md and docs/results.md show, on a machine that does nothing
    else."""
    data_dir: Path | None = None
    """Directory of the benchmarks' files, for --cpu; by default they come from the Hugging Face
    hub."""
    models: Path | None = None
    """Directory of smollm2-q4_0.gguf, smollm2-q8_0.gguf and smollm2-f16.gguf, made by
    llama-quantize, and of qwen2.5-coder-0.5b-q4_k_m.gguf and gemma-3-270m-q4_k_m.gguf, for --cpu;
    parts whose file is missing are left out."""
    small: bool = False
    """Try the campaign itself, with settings of seconds that say nothing of the device, in --out's
    directory small."""

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        for name in self.only:
            if name not in names:
                cure = meant(name, names, f"pass some of {', '.join(names)}")
                raise UserError(f"no part {name!r}; {cure}")
        if not 0 < self.minutes < math.inf:
            raise UserError(f"--minutes must be a finite number above 0, got {self.minutes:g}")
        if not self.cpu and (self.data_dir or self.models):
            raise UserError("--data-dir and --models are for --cpu")
        check_writable(self.out, directory=True)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of such a device."""
        return CPU_PARTS if self.cpu else GPU_PARTS

    @property
    def report(self) -> Path:
        """The file with all tables."""
        return _ROOT / self.place / "REPORT.md"

    @property
    def place(self) -> Path:
        """The directory of all files, as the parts name it."""
        out = (self.out / "small" if self.small else self.out).resolve()
        return out.relative_to(_ROOT) if out.is_relative_to(_ROOT) else out

    def path(self, part: Part, ending: str) -> Path:
        """Returns a file of a part; `json` is there once it is measured."""
        return _ROOT / self.place / f"{part.name}.{ending}"

    def command(self, part: Part) -> list[str]:
        """Returns the command line of a part, without what says where its report goes."""
        words, module = part.words, part.module
        if self.small:
            words = part.small
            module = TRAINING[1] if module == TRAINING[0] else module
        data = ["--data-dir", str(self.data_dir)] if self.data_dir else []
        out, models = (shlex.quote(str(each)) for each in (self.place, self.models))
        words = words.format(out=out, models=models, data=shlex.join(data))
        return ["-m", module, *shlex.split(words)]

    def lacks(self, part: Part) -> str | None:
        """Returns why a part cannot be measured, or None."""
        if "{models}" not in part.words or self.small:
            return None
        file = next(word for word in self.command(part) if word.endswith(".gguf"))
        found = self.models is not None and (_ROOT / file).exists()
        return None if found else f"no {Path(file).name} in --models"


def run(config: CampaignConfig, console: Console) -> dict[str, str]:
    """Measures the parts that are asked for; returns, by name, how each of these ended, or an
    earlier one that is measured: so, or why not."""
    (_ROOT / config.place).mkdir(parents=True, exist_ok=True)
    end, states = time.monotonic() + 60 * config.minutes, {}
    for part in config.parts:
        left = end - time.monotonic()
        if config.path(part, "json").exists():
            states[part.name] = MEASURED
        elif config.only and part.name not in config.only:
            continue
        elif lacking := config.lacks(part):
            states[part.name] = lacking
        elif left <= 0:
            states[part.name] = "no time was left"
        else:
            with console.status(f"{part.name}: {part.what}, {left / 60:.1f} minutes left"):
                states[part.name] = _measure(config, part, left)
        console.print(f"{part.name}: {states[part.name]}", highlight=False, soft_wrap=True)
        write_atomically(config.report, report(config, states).encode())
    return states


def _measure(config: CampaignConfig, part: Part, seconds: float) -> str:
    """Runs a part for so long at most; returns how it ended."""
    command, log = config.command(part), config.path(part, "log")
    made, done = config.path(part, "unfinished"), config.path(part, "json")
    training = command[1] in TRAINING
    output = [] if training else ["--json", str(made)]
    began = time.monotonic()
    with log.open("w") as lines:
        process = subprocess.Popen(
            [sys.executable, *command, *output],
            cwd=_ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},  # the log is in order
            stdout=lines,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches it from here alone
        )
        with _ended(process):
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return "the time ended before it"
    if status:
        [*_, last] = ["nothing was printed", *log.read_text().split("\n")[:-1]]
        return f"failed: {last} ({log.name})"
    if training:
        record = {"title": part.what, "command": shlex.join(["python", *command]), "tables": []}
        record["seconds"] = time.monotonic() - began
        write_atomically(made, json.dumps(record).encode())
    made.rename(done)
    return MEASURED


@contextlib.contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Ends a process that still runs, as Ctrl-C does, or kills it and those that it started."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def report(config: CampaignConfig, states: dict[str, str]) -> str:
    """Returns the tables of all parts that are measured, in Markdown, and how the others ended."""
    known = {part.name: part for part in config.parts}
    out, environment = io.StringIO(), {}
    console = Console(file=out, width=_WIDTH)
    for name, state in states.items():
        console.print(f"\n## {name}: {known[name].what}\n", markup=False, highlight=False)
        if state != MEASURED:
            console.print(state, markup=False, highlight=False)
            continue
        measured = json.loads(config.path(known[name], "json").read_text())
        environment |= measured.get("environment", {})
        console.print(f"`{measured['command']}`\n", markup=False, highlight=False)
        if "seconds" in measured:
            console.print(f"in {measured['seconds'] / 60:.1f} minutes", highlight=False)
        for each in measured["tables"]:
            rows = each["title"], each["columns"], each["rows"], each["caption"]
            console.print(table(*rows))
    lines = [f"- {name}: {value}" for name, value in environment.items()]
    return "\n".join(["# Campaign", "", *lines, out.getvalue()])
