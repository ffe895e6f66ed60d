"""What the target computes for every row of a data set, kept on the disk.

Training needs of the target its features and its last hidden states; computed once, they spare its
forward pass in every step. They take (3 + 1) * D * 2 bytes a token, in bfloat16.
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

_ROWS = 8  # computed at a time
_DONE = "done.json"


@dataclasses.dataclass(frozen=True, eq=False)
class TaughtDataset:
    """Packed rows with what the target says of them.

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
        """How many."""
        return self.dataset.rows

    @property
    def fingerprint(self) -> str:
        """Tells it from other data."""
        return self.dataset.fingerprint

    def batch(self, rows: np.ndarray) -> Batch:
        """The rows of these numbers, integers [B]."""
        batch = self.dataset.batch(rows)
        return batch._replace(features=self.features[rows], hidden=self.hidden[rows])


def cached_teacher(
    config: TargetConfig, params: Params, dataset: PackedDataset, directory: Path, target: str
) -> TaughtDataset:
    """Opens what is there, after computing what is missing; several processes may ask at once.

    Args:
      config: of the target.
      params: its parameters.
      dataset: the rows.
      directory: made if need be; what belongs to other rows or another target stays beside. An
        interrupted computation goes on where it was.
      target: tells this target from others, by config and weights.

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
            if not all(map(_whole, paths, shapes)):
                (directory / _DONE).unlink(missing_ok=True)
                for path, shape in zip(paths, shapes, strict=True):
                    _reserve(path, shape)
            taught = TaughtDataset(dataset, *map(_open, paths, shapes))
            done = directory / _DONE
            start = json.loads(done.read_text())["rows"] if done.is_file() else 0
            if start < rows:
                _compute(config, params, taught, start, done)
    except OSError as error:
        size = 8 * d * dataset.rows * dataset.context / 1e9
        raise UserError(
            f"cannot keep the target's features in {directory}: {error.strerror or error}; they "
            f"take {size:.1f} GB; free disk space, or train with --teacher online"
        ) from error
    return taught


def _bytes(shape: tuple[int, ...]) -> int:
    return 2 * math.prod(shape)


def _whole(path: Path, shape: tuple[int, ...]) -> bool:
    return path.is_file() and path.stat().st_size == _bytes(shape)


def _reserve(path: Path, shape: tuple[int, ...]) -> None:
    """Makes the file; a full disk is found now, and not when a mapped page is written."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _bytes(shape))


def _open(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    return np.memmap(path, np.dtype(ml_dtypes.bfloat16), "r+", shape=shape)


def _compute(
    config: TargetConfig, params: Params, taught: TaughtDataset, start: int, done: Path
) -> None:
    """Fills the rows from `start` on, and notes in the file `done` how many are."""

    @jax.jit
    def run(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        document = jnp.asarray(batch.document)
        out = bind(config, params)(batch.tokens, positions(document), causal(document))
        return out.features.astype(jnp.bfloat16), out.hidden.astype(jnp.bfloat16)

    with progress_bars() as progress:
        bar = progress.add_task("features", total=taught.rows, completed=start, note="")
        for first in range(start, taught.rows, _ROWS):
            rows = np.arange(first, min(first + _ROWS, taught.rows))
            # The last rows are padded: one program serves all.
            padded = np.resize(rows, _ROWS)
            features, hidden = run(params, taught.dataset.batch(padded))
            taught.features[rows] = np.asarray(features)[: len(rows)]
            taught.hidden[rows] = np.asarray(hidden)[: len(rows)]
            end = first + len(rows)
            if end == taught.rows or first // _ROWS % 64 == 63:
                for array in (taught.features, taught.hidden):
                    array.flush()  # pyright: ignore[reportAttributeAccessIssue]
                write_atomically(done, json.dumps({"rows": end}).encode())
            progress.update(bar, completed=end)
