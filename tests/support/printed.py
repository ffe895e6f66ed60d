"""Does what documents print: runs commands, and applies diffs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def run(argv: Sequence[str], environment: Mapping[str, str], stdin: str | None = None) -> str:
    """Runs a program to its end; returns all that it prints. Raises AssertionError if it fails."""
    began = time.monotonic()
    done = subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        input=stdin or "",
    )
    print(f"{time.monotonic() - began:.1f} s: {shlex.join(argv)[:200]}")
    assert not done.returncode, f"status {done.returncode}\n{done.stdout}"
    return done.stdout


def arguments(words: Sequence[str]) -> list[str]:
    """The command line of a printed command, with the programs of this checkout."""
    program, *rest = words
    programs = {
        "dart-jax": [sys.executable, "-P", "-m", "dart_jax"],
        "python": [sys.executable],
        "pytest": [sys.executable, "-m", "pytest"],
    }
    return [*programs.get(program, [program]), *rest]


def apply(diff: str, file: Path) -> None:
    """Adds the lines of a printed diff to a file.

    A line begins with `+` or, where it is there already, with a space; `...` stands between parts.
    Raises AssertionError unless every part has one place.
    """
    for part in re.split(r"^\.\.\.\n", diff, flags=re.M):
        there = "".join(f"{line[1:]}\n" for line in part.splitlines() if line[0] == " ")
        then = "".join(f"{line[1:]}\n" for line in part.splitlines())
        text = file.read_text()
        assert there, f"nothing says where this belongs:\n{part}"
        assert text.count(f"\n{there}") == 1, f"not once in {file.name}:\n{there}"
        file.write_text(text.replace(f"\n{there}", f"\n{then}"))
