"""Files: JSON objects, the user's cache, and outputs: a try before the work, atomic writes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs

from dart_jax.errors import UserError


def user_cache() -> Path:
    """Returns the directory of what is kept between runs: `~/.cache/dart_jax` on Linux, or below
    XDG_CACHE_HOME if set."""
    return platformdirs.user_cache_path("dart_jax", appauthor=False)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises UserError if it is missing, damaged or something else."""
    if not path.parent.is_dir():
        raise UserError(f"no directory {path.parent}; pass one that holds {path.name}")
    if not path.is_file():
        raise UserError(f"no file {path}; the directory holds {contents(path.parent)}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"cannot read {path}: it holds no JSON object")
    return content


def contents(directory: Path) -> str:
    """Returns some of the names in a directory, for who passed one of another format."""
    names = sorted(path.name for path in directory.iterdir())
    return ", ".join([*names[:6], *[".."][: len(names) > 6]]) or "nothing"


def make_once(
    path: Path,
    make: Callable[[Path], None],
    cure: str = "set XDG_CACHE_HOME to a directory that can be written",
) -> Path:
    """Returns a file or a directory, by default of the user's cache, which is made the first time.

    Processes that need the same one wait for the one that makes it.

    Args:
      path: where it is, or appears as a whole.
      make: writes it to the path that it is given; may leave other files next to it.
      cure: what to do if it cannot be written, besides freeing space.

    Raises:
      UserError: it cannot be written.
    """
    if path.exists():
        return path
    import filelock  # which imports asyncio

    work = path.with_name(f".{path.name}.work")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
                work.mkdir()
                try:
                    make(work / path.name)
                    (work / path.name).replace(path)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; free some space, or {cure}"
        ) from None
    return path


def check_writable(path: Path, *, directory: bool = False) -> None:
    """Tries, before any work, to write a file, or files in a directory. Creates missing
    directories; what lies at `path` stays as it is. Raises UserError if it cannot be written."""
    place = path if directory else path.parent
    try:
        if not directory and path.is_dir():
            raise UserError(f"cannot write {path}: it is a directory; name a file")
        if not directory and _is_device(path):
            return
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, prefix=f".{path.name}."):
            pass
    except (FileExistsError, NotADirectoryError):
        while not place.exists():
            place = place.parent
        raise UserError(f"cannot write {path}: {place} is a file, not a directory") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _is_device(path: Path) -> bool:
    """Returns whether a path is something like /dev/null, which no file must replace."""
    return path.is_relative_to("/dev") or (path.exists() and not path.is_file())


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, which replaces `path` when the block ends.

    Creates the directory if it is missing. A reader of `path` never sees a half-written file. If
    the block raises, `path` is unchanged. A device, such as /dev/null, is not replaced but written.
    """
    if _is_device(path):
        with tempfile.TemporaryDirectory() as directory:
            part = Path(directory) / "part"
            yield part
            with path.open("wb") as device:
                device.write(part.read_bytes())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(0o644)  # mkstemp creates files that only their owner may read
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces `path` by `data` in one step."""
    with atomic_path(path) as part:
        part.write_bytes(data)


@contextlib.contextmanager
def writing(what: str, directory: Path, remains: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turns errors of the operating system while writing `what` in a directory into a `UserError`;
    `remains` returns text to append to its message: what has been saved so far."""
    try:
        yield
    except UserError:
        raise
    except TimeoutError:
        raise UserError(
            f"cannot write {what} in {directory}: another process did not finish its part; see "
            f"its error message{remains()}"
        ) from None
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        raise UserError(
            f"cannot write {what} in {directory}: {os.strerror(number)} (fix this, then run the "
            f"same command again){remains()}"
        ) from None


def _number(error: BaseException) -> int | None:
    """Returns the system's error number; tensorstore reports it only in the message."""
    match = re.search(r"os_error_code='(\d+)'", str(error))
    return error.errno if isinstance(error, OSError) else int(match[1]) if match else None
