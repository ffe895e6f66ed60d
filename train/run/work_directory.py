"""Work directories of long runs, from which an interrupted run resumes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.weights.gguf.tensors import gguf_files

_LOCK = "lock"
_SETTINGS = "settings.json"
_SAMPLES, _SAMPLE = 64, 2**16  # of a large file, and the bytes of each
_SHORT = 60  # characters of two values that an error tells; digests, which say nothing, have more


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Creates the directory and locks it for this process; raises UserError if another process
    holds the lock, or the directory holds other files."""
    try:
        work.mkdir(exist_ok=True)
        if any(work.iterdir()) and not (work / _LOCK).is_file():
            raise UserError(f"{work} holds other files; use another directory")
        (work / _LOCK).touch()
    except OSError as error:
        raise UserError(f"cannot use {work}: {error.strerror}") from None
    with exclusive(work, f"another process is using {work}; wait for it"):
        for left in work.glob("tmp-*"):  # left by a killed process
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def exclusive(directory: Path, message: str) -> Iterator[None]:
    """Locks a directory for this process; raises UserError with this message if another process
    holds the lock."""
    with (directory / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(message) from None
        yield


def check_settings(
    work: Path, settings: dict[str, Any], *, result: str, cure: str = "another --work, or delete it"
) -> None:
    """Compares the settings, JSON values by option name, with those of an earlier run, if it left a
    `result`, in words, and records them; raises UserError with the `cure` if they are others."""
    path = work / _SETTINGS
    settings = json.loads(json.dumps(settings))
    if result and path.is_file():
        check_same(f"{work} holds {result}, made", json.loads(path.read_text()), settings, cure)
    write_atomically(path, json.dumps(settings, indent=2).encode())


def check_same(what: str, saved: Mapping[str, Any], settings: Mapping[str, Any], cure: str) -> None:
    """Compares settings by name with those saved, with which `what`, in words, was made; raises
    UserError that names those that differ, the old values that can be typed, and the `cure`."""
    changed = []
    for name in {**saved, **settings}:
        old, new = (each.get(name) for each in (saved, settings))
        if old != new:
            old, new = ("unset" if value is None else str(value) for value in (old, new))
            short = len(old + new) <= _SHORT
            changed.append(f"{name} ({old}, now {new})" if short else name)
    if changed:
        raise UserError(
            f"{what} with another {', '.join(changed)}; pass the same again to go on, or name "
            f"{cure}"
        )


def contents(directory: Path, patterns: Iterable[str]) -> str:
    """Returns a digest of a model's files whose names fit `patterns`, and of GGUF files that the
    directory names, by names, sizes and contents, so that a copy is the same model. Of a large file
    it takes samples: models of one size differ in most places. Raises UserError if one cannot be
    read."""
    digest, files = hashlib.sha256(), gguf_files(directory)
    for path in directory.iterdir():
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in patterns):
            files.append(path)
    for path in sorted(files, key=lambda path: path.name):
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                digest.update(json.dumps([path.name, size]).encode())
                for place in range(0, size, max(_SAMPLE, size // _SAMPLES)):
                    file.seek(place)
                    digest.update(file.read(_SAMPLE))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
    return digest.hexdigest()


def remove(work: Path) -> None:
    """Deletes the directory; if interrupted, the rest still allows the run to resume."""
    last = [work / _SETTINGS, work / _LOCK]
    for path in work.iterdir():
        if path not in last:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in last:
        path.unlink()
    work.rmdir()
