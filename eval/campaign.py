"""Measure a device: all that a report on it should have, the most valuable first.

    dart-jax campaign --minutes 30 --out build/my-gpu

Each part is one of the other programs, with its own process, log and report in --out; what is there
already is not measured again. REPORT.md has all tables, and is written after each part. When the
minutes are over, the part that runs is stopped. The models are SmolLM2, which is fetched (93 MB,
and 27 MB of chats to train on), and random weights in the shapes of Qwen3 with an imposed
acceptance. Needs the extras serve and train.
"""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.files import check_writable, write_atomically
from dart_jax.programs.command_line import RESUMABLE, parse, program
from dart_jax.programs.tables import table

_ROOT = Path(__file__).parents[1]  # where the parts run
_PATIENCE = 30.0  # seconds that a part which is stopped may take to end
_WIDTH = 160  # columns of the report's tables
_REPORT, _MEASURED = "REPORT.md", "measured"


class Part(NamedTuple):
    """A part of a campaign.

    Attributes:
      name: of its files, `NAME.json`, `NAME.log`.
      what: what it measures, in words.
      module: the program, for `python -m`.
      words: its options; {out} is the campaign's directory.
      small: those for a try on a CPU.
    """

    name: str
    what: str
    module: str
    words: str
    small: str


_TRAINED = "--drafter {out}/drafters/drafter --ngram {out}/drafters/ngram.dng"
_QUICK = "--max-new-tokens 16 --repeats 1"
_SHAPE = "--acceptance 3 --prompts 4 --max-new-tokens 256 --tree-nodes"
# Where a part trains, its report is the run's own directory.
_TRAINING = "train.recipes.smollm2", "train.drafter"
PARTS = (
    Part(
        "methods", "SmolLM2 with every method it has", "eval.speedup",
        "--model smollm2 --method all --bench questions --prompts 24 --max-new-tokens 256",
        f"--model demo --method dart,pld --bench demo --prompts 1 {_QUICK}",
    ),
    Part(
        "lossless", "the same tokens drafted and plain", "eval.lossless",
        "--model smollm2 --method all --prompts 2 --samples 0 --max-new-tokens 64 --batch-size 8 "
        "--tree-nodes 16 0 --temperature 0 1 --top-k 0 --top-p 1",
        "--model demo --method dart --prompts 1 --samples 0 --max-new-tokens 8 --batch-size 1 "
        "--tree-nodes 8 --temperature 0",
    ),
    Part(
        "qwen3-1.7b", "a shape of 1.7 B parameters, three tokens a verification", "eval.speedup",
        f"--shape qwen3-1.7b {_SHAPE} 16",
        f"--shape demo --acceptance 2 --tree-nodes 4 --prompts 1 {_QUICK}",
    ),
    Part(
        "qwen3-8b", "a shape of 8 B parameters, the same", "eval.speedup",
        f"--shape qwen3-8b {_SHAPE} 16",
        f"--shape demo --acceptance 2 --tree-nodes 8 --prompts 1 {_QUICK}",
    ),
    *(
        Part(
            f"latency-{size}", "a step against the hardware's limits, and what nodes cost",
            "eval.latency",
            f"--shape qwen3-{size} --context 1024 4096 --tree-nodes 4 16 60",
            "--shape tiny --context 64 --tree-nodes 4 --repeats 1",
        )
        for size in ("1.7b", "8b")
    ),
    Part(
        "batches", "SmolLM2 from one text to 64 together", "eval.speedup",
        "--model smollm2 --bench demo --prompts 16 --batch-size 1 8 64 --repeats 2",
        f"--model demo --bench demo --prompts 1 --batch-size 1 4 {_QUICK}",
    ),
    Part(
        "server", "a server under load, drafted and plain", "eval.serving",
        "--model smollm2 --clients 1 8 64 --rounds 2",
        "--model demo --clients 2 --requests 4 --rounds 1 --max-new-tokens 8",
    ),
    Part(
        "training", "five minutes of training for SmolLM2", _TRAINING[0],
        "--minutes 5 --work {out}/training --export {out}/drafters",
        "--target demo --out {out}/training --data eval/benchmarks/made.py --steps 2 "
        "--context 64 --batch-size 2 --anchors 4 --draft-vocab 256 --eval-prompts 0",
    ),
    Part(
        "trained", "SmolLM2 with the drafters of these minutes", "eval.speedup",
        f"--target smollm2 {_TRAINED} --eagle3 {{out}}/drafters/eagle3 --block "
        "{out}/drafters/dspark --method dart,eagle3,dspark --bench questions --prompts 24",
        f"--target demo --drafter {{out}}/training/drafter --bench demo --prompts 1 {_QUICK}",
    ),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CampaignConfig:
    """Place and time of a campaign."""

    out: Path
    """Directory of the report, the parts' reports and their logs."""
    minutes: float = 30.0
    """Time for all parts; the one that runs then is stopped."""
    only: tuple[str, ...] = ()
    """Parts to measure, by default all: methods, lossless, qwen3-1.7b, qwen3-8b, latency-1.7b,
    latency-8b, batches, server, training, trained."""
    small: bool = False
    """Try the campaign itself, with settings of seconds that say nothing of the device, in --out's
    directory small."""

    def __post_init__(self) -> None:
        names = [part.name for part in PARTS]
        for name in self.only:
            if name not in names:
                raise UserError(f"no part {name!r}; pass some of {', '.join(names)}")
        if not 0 < self.minutes < math.inf:
            raise UserError(f"--minutes must be a finite number above 0, got {self.minutes:g}")
        check_writable(self.out, directory=True)

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
            module = _TRAINING[1] if module == _TRAINING[0] else module
        places = {"out": self.place}
        return ["-m", module, *(word.format(**places) for word in shlex.split(words))]


def run(config: CampaignConfig, console: Console) -> dict[str, str]:
    """Measures the parts that are asked for; returns, by name, how each of these ended, or an
    earlier one that is measured: so, or why not."""
    (_ROOT / config.place).mkdir(parents=True, exist_ok=True)
    end, states = time.monotonic() + 60 * config.minutes, {}
    for part in PARTS:
        left = end - time.monotonic()
        if config.path(part, "json").exists():
            states[part.name] = _MEASURED
        elif config.only and part.name not in config.only:
            continue
        elif left <= 0:
            states[part.name] = "no time was left"
        else:
            with console.status(f"{part.name}: {part.what}, {left / 60:.1f} minutes left"):
                states[part.name] = _measure(config, part, left)
        console.print(f"{part.name}: {states[part.name]}", highlight=False, soft_wrap=True)
        write_atomically(_ROOT / config.place / _REPORT, report(config, states).encode())
    return states


def _measure(config: CampaignConfig, part: Part, seconds: float) -> str:
    """Runs a part for so long at most; returns how it ended."""
    command, log = config.command(part), config.path(part, "log")
    made, done = config.path(part, "unfinished"), config.path(part, "json")
    training = command[1] in _TRAINING
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
    return _MEASURED


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
    known = {part.name: part for part in PARTS}
    out, environment = io.StringIO(), {}
    console = Console(file=out, width=_WIDTH)
    for name, state in states.items():
        console.print(f"\n## {name}: {known[name].what}\n", markup=False, highlight=False)
        if state != _MEASURED:
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


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a part failed, or the time ended before all were measured; 2:
    bad input, reported in one line."""
    with program(RESUMABLE):
        config = parse(CampaignConfig, args, __doc__)
        states = run(config, Console())
        print(_ROOT / config.place / _REPORT)
        if any(state != _MEASURED for state in states.values()):
            sys.exit(1)


if __name__ == "__main__":
    main()
