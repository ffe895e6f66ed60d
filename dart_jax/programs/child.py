"""Programs that run themselves in a new process, to measure it from its start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from dart_jax.errors import UserError


def run_child(name: str, args: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """Runs a program in a new process, which ends with this one's `KeyboardInterrupt`.

    Args:
      name: the program, as `dart_jax.__main__` names it.
      args: its arguments.
      environ: its environment; by default this process's.

    Returns:
      What it printed.

    Raises:
      UserError: it failed; with its own message.
    """
    done = subprocess.run(
        [sys.executable, "-m", "dart_jax", name, *args],
        env=environ,
        capture_output=True,
        text=True,
        process_group=0,  # Ctrl-C reaches only this process, which then kills the other
    )
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(message.removeprefix("error: "))
    return done.stdout
