"""Work directories of long runs, from which an interrupted run resumes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.files import write_atomically

_LOCK = "lock"
_SETTINGS = "settings.json"


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Creates the directory and locks it for this process.

    Raises:
      UserError: another process holds the lock, or the directory holds other files.
    """
    try:
        work.mkdir(exist_ok=True)
        if any(work.iterdir()) and not (work / _LOCK).is_file():
            raise UserError(f"--work {work} holds other files; use another directory")
        lock = (work / _LOCK).open("w")
    except OSError as error:
        raise UserError(f"cannot use --work {work}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is using {work}; wait for it") from None
        for left in work.glob("tmp-*"):  # left by a killed process
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Locks a run's directory: two runs would remove each other's files.

    Raises:
      UserError: another process holds the lock.
    """
    with (directory / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run is training in {directory}; wait for it or use another directory"
            ) from None
        yield


def check_settings(work: Path, settings: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Records the settings in a new directory; checks them against those of an existing one.

    Args:
      work: the directory.
      settings: what must not change, by option name.
      kept: further values, which a new directory records and an existing one keeps.

    Returns:
      `kept`, as recorded in the directory.

    Raises:
      UserError: the directory was started with other settings.
    """
    path = work / _SETTINGS
    if not path.is_file():
        write_atomically(path, json.dumps([settings, kept], indent=2).encode())
    saved, kept = json.loads(path.read_text())
    changed = [name for name in {**saved, **settings} if saved.get(name) != settings.get(name)]
    if changed:
        raise UserError(
            f"{work} was started with another {', '.join(changed)}; delete it or pass another "
            "--work"
        )
    return kept


def remove(work: Path) -> None:
    """Deletes the directory; if interrupted, the rest still allows the run to resume."""
    last = [work / _SETTINGS, work / _LOCK]
    for path in work.iterdir():
        if path not in last:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in last:
        path.unlink()
    work.rmdir()
