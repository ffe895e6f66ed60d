"""What the target computes for every row of a data set, kept on the disk.

Training needs of the target its features and its last hidden states; computed once, they spare its
forward pass in every step. They take (3 + 1) * D * 2 bytes a token, in bfloat16.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dart_jax.config import TargetConfig
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.pure import Params, bind
from train.batch import Batch, causal, positions
from train.counting import progress_bars
from train.packed import PackedDataset

_ROWS = 8  # computed at a time


@dataclasses.dataclass(frozen=True, eq=False)
class CachedTeacher:
    """Features and hidden states by row.

    Attributes:
      features: bfloat16 [rows, T, 3D].
      hidden: bfloat16 [rows, T, D].
    """

    features: np.ndarray
    hidden: np.ndarray

    def add_to(self, batch: Batch, rows: np.ndarray) -> Batch:
        """The batch of these rows with what the target says of it."""
        return batch._replace(features=self.features[rows], hidden=self.hidden[rows])


def cached_teacher(
    config: TargetConfig, params: Params, dataset: PackedDataset, directory: Path, target: str
) -> CachedTeacher:
    """Opens what is there, after computing what is missing.

    Args:
      config: of the target.
      params: its parameters.
      dataset: the rows.
      directory: made if need be; an interrupted computation goes on where it was.
      target: tells this target's weights from others'.

    Raises:
      UserError: the directory cannot be written.
    """
    name = hashlib.sha256(json.dumps([target, dataset.fingerprint]).encode()).hexdigest()
    done_path = directory / "done.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        kept = json.loads(done_path.read_text()) if done_path.is_file() else {}
        done = kept["rows"] if kept.get("name") == name else 0
        shape = (dataset.rows, dataset.context)
        cached = CachedTeacher(
            *(
                _open(directory / field, (*shape, width), fresh=not done)
                for field, width in (
                    ("features", 3 * config.hidden_size),
                    ("hidden", config.hidden_size),
                )
            )
        )
        if done < dataset.rows:
            _compute(config, params, dataset, cached, done, done_path, name)
    except OSError as error:
        raise UserError(
            f"cannot keep the target's features in {directory}: {error.strerror or error}; they "
            f"take {8 * config.hidden_size * dataset.rows * dataset.context / 1e9:.1f} GB; free "
            "disk space, or train with --teacher online"
        ) from error
    return cached


def _open(path: Path, shape: tuple[int, ...], *, fresh: bool) -> np.ndarray:
    size = int(np.prod(shape)) * 2
    if fresh or not path.is_file() or path.stat().st_size != size:
        with path.open("wb") as file:
            # So that a full disk is found now, and not when a mapped page is written.
            import os

            os.posix_fallocate(file.fileno(), 0, size)
    return np.memmap(path, np.dtype(ml_dtypes.bfloat16), "r+", shape=shape)


def _compute(
    config: TargetConfig,
    params: Params,
    dataset: PackedDataset,
    cached: CachedTeacher,
    done: int,
    done_path: Path,
    name: str,
) -> None:
    @jax.jit
    def run(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        document = jnp.asarray(batch.document)
        out = bind(config, params)(batch.tokens, positions(document), causal(document))
        return out.features.astype(jnp.bfloat16), out.hidden.astype(jnp.bfloat16)

    with progress_bars() as progress:
        bar = progress.add_task("features", total=dataset.rows, completed=done, note="")
        for start in range(done, dataset.rows, _ROWS):
            rows = np.arange(start, min(start + _ROWS, dataset.rows))
            # The last rows are padded: one program serves all.
            padded = np.resize(rows, _ROWS)
            features, hidden = run(params, dataset.batch(padded))
            cached.features[rows] = np.asarray(features)[: len(rows)]
            cached.hidden[rows] = np.asarray(hidden)[: len(rows)]
            end = start + len(rows)
            if end == dataset.rows or start // _ROWS % 64 == 63:
                for array in (cached.features, cached.hidden):
                    array.flush()  # pyright: ignore[reportAttributeAccessIssue]
                write_atomically(done_path, json.dumps({"name": name, "rows": end}).encode())
            progress.update(bar, completed=end)
