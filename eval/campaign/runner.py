"""Runs one part in a process of its own, within a time."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

from eval.campaign.device import gpu_state
from eval.campaign.parts import Part

State = Literal["done", "failed", "out of time", "not run"]
_GRACE = 15.0  # seconds that an interrupted program has to write its reports
_ENDINGS = {"json": "report.json", "markdown": "report.md", "plot": "figure.png"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Attributes:
      part: its name.
      state: how it ended.
      seconds: that it took.
      message: its last line of errors, if it did not end well.
      gpu: nvidia-smi's line before and after it; empty without it.
    """

    part: str
    state: State
    seconds: float = 0.0
    message: str = ""
    gpu: tuple[str, str] = ("", "")

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Outcome:
        """Reads what `dataclasses.asdict` returned."""
        return cls(**{**content, "gpu": tuple(content["gpu"])})


def run_part(part: Part, directory: Path, seconds: float) -> Outcome:
    """Runs a part; its reports and its output go to `directory`.

    Args:
      part: what to run.
      directory: is created.
      seconds: after so many it is interrupted as by Ctrl-C, and ended if that does not help.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "dart_jax", *part.call.split()]
    for report in part.reports:
        command += [f"--{report}", str(directory / _ENDINGS[report])]
    before, began = gpu_state(), time.monotonic()
    with open(directory / "output.txt", "wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches only this process, which then ends the other
        )
        try:
            process.wait(seconds)
            late = False
        except subprocess.TimeoutExpired:
            late = True
            _end(process)
        except BaseException:
            _end(process)
            raise
    state: State = "out of time" if late else "failed" if process.returncode else "done"
    lines = (directory / "output.txt").read_text(errors="replace").split("\n")
    message = next((line for line in reversed(lines) if line.strip()), "no output")
    return Outcome(
        part.name,
        state,
        time.monotonic() - began,
        "" if state == "done" else message.strip().removeprefix("error: "),
        (before, gpu_state()),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it started."""
    for number, grace in ((signal.SIGINT, _GRACE), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(grace)
        except ProcessLookupError:
            process.wait()
            return
        except subprocess.TimeoutExpired:
            continue
        return
