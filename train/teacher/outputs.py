"""The target's outputs for every row of a data set, cached on disk.

Training needs the target's features and last hidden states; computing them once saves the target's
forward pass in every step. They take (3 + 1) * D * 2 bytes per token, in bfloat16.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from filelock import FileLock

from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.models.platform.execution import Execution
from dart_jax.models.pure import Params
from dart_jax.programs.processes import is_main
from dart_jax.progress import progress_bars
from train.data.batch import Batch
from train.data.packed_dataset import PackedDataset
from train.run.distributed import from_main, wait
from train.run.mesh import replicated
from train.teacher.teacher import Teacher, forward

_ROWS = 8  # rows computed at a time, if they divide among the groups of devices
_DONE = "done.json"
_RECORD = 10.0  # seconds between records of how many rows are filled
_NOWHERE = -1  # instead of a row, if the cache cannot be used

# Indices of rows, their features bfloat16 [n, T, 3D] and last hidden states bfloat16 [n, T, D].
_Part = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class TeacherDataset:
    """Packed rows with the target's outputs.

    Attributes:
      dataset: the rows.
      features: bfloat16 [rows, T, 3D].
      hidden: bfloat16 [rows, T, D].
    """

    dataset: PackedDataset
    features: np.ndarray
    hidden: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.dataset.rows

    @property
    def fingerprint(self) -> str:
        """Identifies the data."""
        return self.dataset.fingerprint

    def batch(self, rows: np.ndarray) -> Batch:
        """Returns the rows with these indices, integers [B]."""
        batch = self.dataset.batch(rows)
        return batch._replace(features=self.features[rows], hidden=self.hidden[rows])


def cached_outputs(teacher: Teacher, dataset: PackedDataset, directory: Path) -> TeacherDataset:
    """Computes what is missing in the cache and opens it; safe to call from several runs at once.
    The processes of a run compute together, and the first of them writes.

    Args:
      teacher: the target.
      dataset: the rows.
      directory: the cache, created if needed, which all processes see; it can hold the outputs for
        other rows and targets as well. An interrupted computation resumes.

    Raises:
      UserError: the directory cannot be written, or not be read by all processes.
    """
    d, rows = teacher.stored.hidden_size, dataset.rows
    name = hashlib.sha256(json.dumps([teacher.digest, dataset.fingerprint]).encode()).hexdigest()
    directory = directory / name[:16]
    files = {directory / "features": 3 * d, directory / "hidden": d}
    shapes = {path: (rows, dataset.context, width) for path, width in files.items()}
    start, problem, cached = _NOWHERE, None, None
    with contextlib.ExitStack() as stack:
        if is_main():
            try:
                directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(directory / "lock"))
                cached, start = _prepare(dataset, directory, shapes)
            except OSError as error:
                problem = error
        wait("the cache of the target's outputs is open")
        start = int(from_main(np.int32(start)))
        parts = _computed(teacher, dataset, start) if start != _NOWHERE else iter(())
        if cached is None:
            collections.deque(parts, maxlen=0)
        elif start < rows:
            try:
                _fill(cached, parts, start, directory / _DONE)
            except OSError as error:
                start, problem = _NOWHERE, error
        if start == _NOWHERE:
            reason = "process 0 could not" if problem is None else problem.strerror or str(problem)
            raise UserError(
                f"cannot cache the target's features in {directory}: {reason}; they take "
                f"{8 * d * rows * dataset.context / 1e9:.1f} GB; free disk space, or train with "
                "--teacher online"
            ) from problem
    wait("the cache of the target's outputs is filled")
    try:
        return cached or TeacherDataset(dataset, *map(_open, shapes, shapes.values()))
    except OSError as error:
        raise UserError(
            f"process {jax.process_index()} cannot read the target's features that process 0 wrote "
            f"to {directory}: {error.strerror or error}; use storage that all processes share"
        ) from None


def _prepare(
    dataset: PackedDataset, directory: Path, shapes: dict[Path, tuple[int, ...]]
) -> tuple[TeacherDataset, int]:
    """Opens the files, whole or to be filled; returns them and how many rows are filled."""
    done = directory / _DONE
    if not all(map(_complete, shapes, shapes.values())):
        done.unlink(missing_ok=True)
        for path, shape in shapes.items():
            _reserve(path, shape)
    try:
        filled = int(json.loads(done.read_text())["rows"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # missing or damaged
        filled = 0
    return TeacherDataset(dataset, *map(_open, shapes, shapes.values())), filled


def _bytes(shape: tuple[int, ...]) -> int:
    return 2 * math.prod(shape)


def _complete(path: Path, shape: tuple[int, ...]) -> bool:
    return path.is_file() and path.stat().st_size == _bytes(shape)


def _reserve(path: Path, shape: tuple[int, ...]) -> None:
    """Allocates the file, so that a full disk fails now, not when a mapped page is written."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _bytes(shape))


def _open(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    return np.memmap(path, np.dtype(ml_dtypes.bfloat16), "r+", shape=shape)


def _computed(teacher: Teacher, dataset: PackedDataset, start: int) -> Iterator[_Part]:
    """Computes the rows from `start` on, some at a time; all processes take part."""
    config, mesh = teacher.config, teacher.mesh

    def run(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        features, hidden = forward(config, params, batch, mesh)
        return features.astype(jnp.bfloat16), hidden.astype(jnp.bfloat16)

    compiled = jax.jit(run, out_shardings=None if mesh is None else replicated(mesh))
    groups = Execution(mesh=mesh).groups
    size = groups * -(-_ROWS // groups)
    for first in range(start, dataset.rows, size):
        rows = np.arange(first, min(first + size, dataset.rows))
        # Pad the last rows, so that one compiled program serves all.
        features, hidden = compiled(teacher.params, dataset.batch(np.resize(rows, size)))
        yield rows, np.asarray(features)[: len(rows)], np.asarray(hidden)[: len(rows)]


def _fill(cached: TeacherDataset, parts: Iterator[_Part], start: int, done: Path) -> None:
    """Fills the rows from `start` on and records in the file `done` how many are filled."""
    end = start

    def record() -> float:
        for array in (cached.features, cached.hidden):
            array.flush()  # pyright: ignore[reportAttributeAccessIssue]
        write_atomically(done, json.dumps({"rows": end}).encode())
        return time.monotonic()

    with progress_bars() as progress:
        bar = progress.add_task("target's outputs", total=cached.rows, completed=start, note="")
        began = recorded = time.monotonic()
        try:
            for rows, features, hidden in parts:
                cached.features[rows], cached.hidden[rows] = features, hidden
                end = int(rows[-1]) + 1
                if time.monotonic() - recorded > _RECORD:
                    recorded = record()
                pace = (end - start) * cached.dataset.context / (time.monotonic() - began)
                progress.update(bar, completed=end, note=f"{end:,} rows, {pace:,.0f} tokens/s")
        finally:
            record()
