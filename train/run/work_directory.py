"""What a long run keeps on the disk, so that it can go on after any interruption."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.files import write_atomically

_LOCK = "lock"
_SETTINGS = "settings.json"


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Makes the directory and holds it for this process alone.

    Raises:
      UserError: another process has it, or it holds something else.
    """
    try:
        work.mkdir(exist_ok=True)
        if any(work.iterdir()) and not (work / _LOCK).is_file():
            raise UserError(f"--work {work} holds other files; name another directory")
        lock = (work / _LOCK).open("w")
    except OSError as error:
        raise UserError(f"cannot use --work {work}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is at work in {work}; wait for it") from None
        for left in work.glob("tmp-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Holds a directory for this process: two runs would remove each other's files.

    Raises:
      UserError: another process has it.
    """
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run trains in {directory}; wait for it or name another directory"
            ) from None
        yield


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Around a program: an interruption ends it with a line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from what was saved", file=sys.stderr)
        sys.exit(130)


def claim(work: Path, settings: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Notes what the directory is for; refuses to mix.

    Args:
      work: the directory.
      settings: what must be the same, by the names of the options.
      kept: what a new directory notes beside, and an old one keeps.

    Returns:
      `kept`, as the directory has it.

    Raises:
      UserError: it was begun with other settings.
    """
    path = work / _SETTINGS
    if not path.is_file():
        write_atomically(path, json.dumps([settings, kept], indent=2).encode())
    begun, kept = json.loads(path.read_text())
    changed = [name for name in {**begun, **settings} if begun.get(name) != settings.get(name)]
    if changed:
        raise UserError(
            f"{work} was begun with another {', '.join(changed)}; delete it or pass another --work"
        )
    return kept


def remove(work: Path) -> None:
    """Deletes the directory; what is left if that is interrupted can still be gone on with."""
    last = [work / _SETTINGS, work / _LOCK]
    for path in work.iterdir():
        if path not in last:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in last:
        path.unlink()
    work.rmdir()
