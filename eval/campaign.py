"""Measure a new device: everything that matters, in order of value, within a time.

    python -m eval.campaign --minutes 9
    python -m eval.campaign --list

Each part is a run of another program in a process of its own. What it prints, its JSON report and
summary.md are written as soon as it is done; the same command goes on with the parts that have no
report. A part starts only if the time that is left can suffice.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.files import check_writable
from dart_jax.models.attention.attend import attend
from dart_jax.models.attention.segments import Prefix, Segment
from dart_jax.models.experts.kernel import routed
from dart_jax.models.experts.plain import grouped
from dart_jax.models.platform.execution import Execution
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs, write_text
from dart_jax.programs.provenance import write_report
from dart_jax.programs.tables import table
from dart_jax.progress import stage

_MOST_APART = 2e-2  # relative, of the kernels' bfloat16 results and plain JAX's float32


class Part(NamedTuple):
    """One run of a program.

    Attributes:
      name: of the part, and of its files.
      least: seconds that it needs to tell anything; with less time left it is not started.
      call: the program, as `dart-jax` calls it, and its options without --json.
    """

    name: str
    least: int
    call: str


# The acceptance length that the paper reports for Qwen3-8B's size.
_8B = "speedup --shape qwen3-8b --acceptance 3.6 --tree-nodes 60 --prompts 1"

PARTS = (
    Part("device", 40, "campaign --device"),
    Part("speedup-8b", 90, _8B),
    Part("latency-8b", 90, "latency --shape qwen3-8b --context 2048 --tree-nodes 8 60"),
    Part("lossless", 60, "lossless --model demo --prompts 2 --temperature 0 1 --batch-size 4"),
    Part("speedup-demo", 90, "speedup --model demo --method all --prompts 2"),
    Part("eagle3-8b", 75, f"{_8B} --method eagle3"),
    Part("dense-8b", 75, f"{_8B} --attention dense"),
    Part("search", 60, "search --model demo --prompts 1"),
    Part("host-8b", 75, f"{_8B} --search host"),
    Part(
        "batch-16",
        75,
        "speedup --shape qwen3-8b --acceptance 2.5 --tree-nodes 11 --batch-size 16 --prompts 4",
    ),
    Part("serving", 240, "serving --model demo --clients 1 16 64"),
    Part("speedup-1.7b", 60, _8B.replace("8b", "1.7b")),
)


@dataclasses.dataclass(frozen=True)
class CampaignConfig:
    """For how long to measure, and where to."""

    minutes: float = 9.0
    """Time for everything."""
    out: Path = Path("campaign")
    """Directory of the results; a part whose report is there is not run again."""
    list: bool = False
    """Print the parts, their commands and the time they need at least, and run nothing."""
    device: bool = False
    """Only check that the device's kernels compute what plain JAX does."""
    json: Path | None = None
    """With --device: write the result to this file."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise UserError(f"--minutes must be more than 0, got {self.minutes}")
        if self.json is not None and not self.device:
            raise UserError("--json needs --device; a campaign's results go to --out")


def run(config: CampaignConfig, console: Console) -> dict[str, str]:
    """Runs the parts that the time suffices for; returns part -> its state: done, failed, out of
    time, or not run.

    Raises:
      UserError: the results cannot be written.
    """
    end = time.monotonic() + 60 * config.minutes
    check_writable(config.out, directory=True)
    outcomes = {part.name: "done" for part in PARTS if (config.out / f"{part.name}.json").exists()}
    for part in PARTS:
        left = end - time.monotonic()
        if part.name in outcomes:
            pass
        elif left < part.least or outcomes.get("device") == "failed":
            outcomes[part.name] = "not run"
        else:
            with stage(f"{part.name} ({left:.0f} s left)", console):
                outcomes[part.name] = run_part(part, config.out, left)
            write_text(config.out / "summary.md", summary(config.out, outcomes))
        console.print(f"{part.name}: {outcomes[part.name]}")
    return outcomes


def run_part(part: Part, directory: Path, seconds: float) -> str:
    """Runs a part, for so many seconds at most; NAME.json and what it prints, NAME.txt, go to
    `directory`. Returns its state."""
    output, report = (directory / f"{part.name}.{kind}" for kind in ("txt", "json"))
    command = [sys.executable, "-m", "dart_jax", *part.call.split(), "--json", str(report)]
    # Ctrl-C reaches only this process, which then ends the other, with the servers that it started.
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "process_group": 0}
    with (
        output.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options) as process,
    ):
        try:
            if not process.wait(seconds):
                return "done"
            if report.exists():  # of a check that failed, to be repeated
                report.replace(directory / f"{part.name}.failed.json")
            return "failed"
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def summary(directory: Path, outcomes: dict[str, str]) -> str:
    """Returns the report in Markdown: a table of the parts, then what each of them printed."""
    lines = ["# Campaign", "", "| part | command | |", "| --- | --- | --- |"]
    for part in PARTS:
        lines.append(f"| {part.name} | `{part.call}` | {outcomes.get(part.name, 'not run')} |")
    for name in outcomes:
        if (printed := directory / f"{name}.txt").exists():
            text = printed.read_text(errors="replace").strip()
            lines += ["", f"## {name}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def check_device() -> dict[str, float]:
    """Compares the platform's kernels, in bfloat16, with plain JAX in float32.

    Returns:
      For each kernel the norm of the difference over the result's.

    Raises:
      UserError: a kernel's result is wrong.
    """
    execution = Execution.here()
    experts = grouped
    if execution.experts != "jax":
        experts = partial(routed, interpret=execution.experts == "interpret")
    apart = {
        f"attention: {execution.attention}": _apart(
            partial(attend, kernel=execution.attention), attend, *_attention_inputs()
        ),
        f"experts: {execution.experts}": _apart(experts, grouped, *_experts_inputs()),
    }
    for name, difference in apart.items():
        if not difference <= _MOST_APART:
            raise UserError(
                f"{name} is off by {difference:.3g} of its result: please report it with this "
                "device, its driver and jax's version; --attention dense goes without kernels"
            )
    return apart


def _attention_inputs() -> tuple[list[Segment], Prefix]:
    """Draws a tree's rows that see each other in part, and a prefix with unused rows, of Qwen3-8B's
    heads."""
    rng, rows, capacity = np.random.default_rng(1), 61, 2048
    mask = np.tril(rng.random((1, rows, rows)) < 0.5) | np.eye(rows, dtype=bool)
    normal = lambda *shape: jnp.asarray(rng.standard_normal((1, *shape, 128)), jnp.bfloat16)  # noqa: E731
    new = Segment(normal(32, rows), normal(8, rows), normal(8, rows), jnp.asarray(mask))
    length = jnp.array([capacity - 100], jnp.int32)
    return [new], Prefix(normal(8, capacity), normal(8, capacity), length)


def _experts_inputs() -> tuple[Any, ...]:
    """Draws a tree's rows, each sent to 8 of 32 experts of Qwen3-30B-A3B's size."""
    rng, rows, hidden, width = np.random.default_rng(2), 61, 2048, 768

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape) * shape[-2] ** -0.5, jnp.bfloat16)

    chosen = np.argsort(rng.random((rows, 32)))[:, :8].astype(np.int32)
    kernels = normal(32, hidden, width), normal(32, hidden, width), normal(32, width, hidden)
    return normal(rows, hidden), normal(rows, 8), chosen, *kernels


def _apart(kernel: Any, plain: Any, *inputs: Any) -> float:
    """Returns the norm of the difference of two functions' results, over the second one's."""
    result = jax.jit(kernel)(*inputs).astype(jnp.float32)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, inputs)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(plain)(*wide)
    return float(jnp.linalg.norm((result - expected).ravel()) / jnp.linalg.norm(expected.ravel()))


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a part failed; 2: bad input, reported in one line."""
    with program():
        config = parse(CampaignConfig, args, __doc__)
        console = Console(soft_wrap=True)
        if config.device:
            check_outputs(config.json)
            apart = check_device()
            rows = [(name, f"{difference:.2g}") for name, difference in apart.items()]
            title = "Kernels in bfloat16 beside plain JAX in float32"
            caption = "apart: norm of the difference, over that of the result"
            printed = table(title, ("kernel", "apart"), rows, caption)
            console.print(printed)
            write_report(config, "Kernels of the device", [printed], apart=apart)
        elif config.list:
            for part in PARTS:
                console.print(f"{part.name} ({part.least} s)\n    dart-jax {part.call}")
        elif "failed" in run(config, console).values():
            raise SystemExit(1)


if __name__ == "__main__":
    main()
