"""Finds the library of the CUDA runtime, libcudart."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def find_cuda_runtime() -> str | None:
    """Returns the path of the CUDA runtime, or None if there is none.

    Looks in the wheels that `jax[cuda13]` and `jax[cuda12]` install; then for one that is loaded
    already or that the system knows, and in `CUDA_HOME`. Of several, takes the first one of the
    version that the installed JAX needs, or else the first one.
    """
    needed = _needed_version()
    others = []
    for path in _candidates():
        if needed is None or _version(path) == needed:
            return path
        others.append(path)
    return others[0] if others else None


def _candidates() -> Iterator[str]:
    """All that are found, the most likely ones first: those further down take longer."""
    yield from _installed()
    yield from _loaded()
    if known := ctypes.util.find_library("cudart"):
        yield known
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        for folder in ("lib64", "lib"):
            yield from _in(Path(home) / folder)


def _installed() -> Iterator[str]:
    """Those of wheels: nvidia/cu13/lib/libcudart.so.13, nvidia/cuda_runtime/lib/libcudart.so.12."""
    for place in sys.path:
        for folder in _newest_first(Path(place or ".").glob("nvidia/*/lib")):
            yield from _in(folder)


def _loaded() -> list[str]:
    """Those that this process has loaded, on Linux."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted(set(re.findall(r"/\S*/libcudart\.so\S*", maps)))


def _in(folder: Path) -> list[str]:
    """Those in a folder. (Only development packages have one without a version.)"""
    return [str(path) for path in _newest_first(folder.glob("libcudart.so*"))]


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    """Orders by the numbers in the last two names."""

    def numbers(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", "/".join(path.parts[-2:]))]

    return sorted(paths, key=numbers, reverse=True)


def _version(path: str) -> int | None:
    """The major version in a library's name, behind links if need be."""
    for name in (path, os.path.realpath(path)):
        if found := re.search(r"libcudart\.so\.(\d+)", name):
            return int(found[1])
    return None


def _needed_version() -> int | None:
    """The major version of CUDA that JAX's plugin was built for, the newest of several."""
    for version in (13, 12):
        try:
            importlib.metadata.distribution(f"jax-cuda{version}-plugin")
        except importlib.metadata.PackageNotFoundError:
            continue
        return version
    return None
