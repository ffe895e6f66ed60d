"""The target's outputs for every row of a data set, cached on disk.

Training needs the target's features and last hidden states; computing them once saves the target's
forward pass in every step. They take (3 + 1) * D * 2 bytes per token, in bfloat16.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from filelock import FileLock

from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.models.config import TargetConfig
from dart_jax.models.pure import Params, bind
from dart_jax.programs.progress import progress_bars
from train.data.batch import Batch, causal, positions
from train.data.packed_dataset import PackedDataset

_ROWS = 8  # rows computed at a time
_DONE = "done.json"


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


def cached_teacher(
    config: TargetConfig, params: Params, dataset: PackedDataset, directory: Path, target: str
) -> TeacherDataset:
    """Computes what is missing in the cache and opens it; safe to call from several processes.

    Args:
      config: the target's config.
      params: the target's parameters.
      dataset: the rows.
      directory: the cache, created if needed; it can hold the outputs for other rows and targets
        as well. An interrupted computation resumes.
      target: identifies the target's config and weights.

    Raises:
      UserError: the directory cannot be written.
    """
    d, rows = config.hidden_size, dataset.rows
    name = hashlib.sha256(json.dumps([target, dataset.fingerprint]).encode()).hexdigest()
    directory = directory / name[:16]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / "lock"):
            paths = [directory / "features", directory / "hidden"]
            shapes = [(rows, dataset.context, width) for width in (3 * d, d)]
            if not all(map(_complete, paths, shapes)):
                (directory / _DONE).unlink(missing_ok=True)
                for path, shape in zip(paths, shapes, strict=True):
                    _reserve(path, shape)
            cached = TeacherDataset(dataset, *map(_open, paths, shapes))
            done = directory / _DONE
            start = json.loads(done.read_text())["rows"] if done.is_file() else 0
            if start < rows:
                _compute(config, params, cached, start, done)
    except OSError as error:
        size = 8 * d * dataset.rows * dataset.context / 1e9
        raise UserError(
            f"cannot cache the target's features in {directory}: {error.strerror or error}; they "
            f"take {size:.1f} GB; free disk space, or train with --teacher online"
        ) from error
    return cached


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


def _compute(
    config: TargetConfig, params: Params, cached: TeacherDataset, start: int, done: Path
) -> None:
    """Fills the rows from `start` on and records in the file `done` how many are filled."""

    @jax.jit
    def run(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        document = jnp.asarray(batch.document)
        out = bind(config, params)(batch.tokens, positions(document), causal(document))
        return out.features.astype(jnp.bfloat16), out.hidden.astype(jnp.bfloat16)

    with progress_bars() as progress:
        bar = progress.add_task("features", total=cached.rows, completed=start, note="")
        for first in range(start, cached.rows, _ROWS):
            rows = np.arange(first, min(first + _ROWS, cached.rows))
            # Pad the last rows, so that one compiled program serves all.
            padded = np.resize(rows, _ROWS)
            features, hidden = run(params, cached.dataset.batch(padded))
            cached.features[rows] = np.asarray(features)[: len(rows)]
            cached.hidden[rows] = np.asarray(hidden)[: len(rows)]
            end = first + len(rows)
            if end == cached.rows or first // _ROWS % 64 == 63:
                for array in (cached.features, cached.hidden):
                    array.flush()  # pyright: ignore[reportAttributeAccessIssue]
                write_atomically(done, json.dumps({"rows": end}).encode())
            progress.update(bar, completed=end)
