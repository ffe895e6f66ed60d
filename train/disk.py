"""What goes wrong when files are written, told in one line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from dart_jax.errors import UserError

_FULL = {errno.ENOSPC: "is full", errno.EDQUOT: "has no quota left"}


@contextlib.contextmanager
def writing(what: str, directory: Path, remains: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Around writes: what fails becomes a `UserError`.

    Args:
      what: is being written.
      directory: where.
      remains: tells then what is not lost.
    """
    try:
        yield
    except UserError:
        raise
    except TimeoutError:
        raise UserError(
            f"cannot write {what} in {directory}: another process did not finish its part, and "
            f"tells why{remains()}"
        ) from None
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        if number in _FULL:
            mount = _mount(directory)
            reason = f"the file system at {mount} {_FULL[number]}"
            free = shutil.disk_usage(mount).free
            advice = f"({free / 1e6:,.0f} MB free; make room, then run the same command again)"
        else:
            reason, advice = os.strerror(number), "(mend that, then run the same command again)"
        raise UserError(
            f"cannot write {what} in {directory}: {reason} {advice}{remains()}"
        ) from None


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


def _number(error: BaseException) -> int | None:
    """The system's error number; tensorstore tells it in its text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found else None


def _mount(path: Path) -> Path:
    """Where the path's file system begins."""
    path = path.resolve()
    while not path.is_mount():
        path = path.parent
    return path
