"""The target's outputs for every row of a data set, cached on disk.

Training needs the target's features and last hidden states; computing them once saves the target's
forward pass in every step. They take (3 + 1) * D * 2 + 8 bytes per token, states in bfloat16.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from filelock import FileLock

from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.pure import Params, dtype_of
from dart_jax.models.sharding.devices import Devices
from dart_jax.programs.processes import is_main
from dart_jax.progress import progress_bars
from train.data.batch import Batch, TeacherOutputs
from train.data.packed_dataset import PackedDataset
from train.run.mesh import from_main, jit_replicated, wait
from train.teacher.teacher import Teacher, forward, over_vocabulary

_ROWS = 8  # rows computed at a time, if they divide among the groups of devices
_DONE = "done.json"
_RECORD = 10.0  # seconds between records of how many rows are filled
_NOWHERE = -1  # instead of a row, if the cache cannot be used

_Part = tuple[np.ndarray, TeacherOutputs]  # indices of rows, and the outputs for them
_Shapes = dict[str, jax.ShapeDtypeStruct]  # of each part of the outputs, which names its file


def cached_outputs(teacher: Teacher, dataset: PackedDataset, directory: Path) -> PackedDataset:
    """Returns the rows with their outputs, the parts of `TeacherOutputs`, features and hidden
    states in bfloat16; computes what is missing in the cache. Safe to call from several runs at
    once; the processes of a run compute together, and the first of them writes.

    The directory, which all processes see, may hold the outputs for other rows and targets as well.
    An interrupted computation resumes. Raises UserError if it cannot be written, or not be read by
    all processes.
    """
    rows, dtype = dataset.rows, str(dtype_of(teacher.params))
    computed = f"{dtype}, {teacher.options}" if teacher.options != LayerOptions() else dtype
    identity = [teacher.digest, computed, dataset.fingerprint, TeacherOutputs._fields]
    directory /= hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    shapes = _shapes(teacher.stored.hidden_size, dataset)
    start, problem, cached = _NOWHERE, None, None
    with contextlib.ExitStack() as stack:
        if is_main():
            try:
                directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(directory / "lock"))
                start, cached = _prepare(directory, shapes), _open(dataset, directory, shapes)
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
                f"{sum(map(_bytes, shapes.values())) / 1e9:.1f} GB; free disk space, or train with "
                "--teacher online"
            ) from problem
    wait("the cache of the target's outputs is filled")
    try:
        return cached or _open(dataset, directory, shapes)
    except OSError as error:
        raise UserError(
            f"process {jax.process_index()} cannot read the target's features that process 0 wrote "
            f"to {directory}: {error.strerror or error}; use storage that all processes share"
        ) from None


def _shapes(width: int, dataset: PackedDataset) -> _Shapes:
    """Returns the shapes and dtypes of the files for a target of this hidden size."""
    rows = dataset.rows, dataset.context
    return {
        "features": jax.ShapeDtypeStruct((*rows, 3 * width), jnp.bfloat16),
        "hidden": jax.ShapeDtypeStruct((*rows, width), jnp.bfloat16),
        "log_total": jax.ShapeDtypeStruct(rows, jnp.float32),
        "best": jax.ShapeDtypeStruct(rows, jnp.int32),
    }


def _bytes(part: jax.ShapeDtypeStruct) -> int:
    return part.size * part.dtype.itemsize


def _prepare(directory: Path, shapes: _Shapes) -> int:
    """Reserves the files that are not whole; returns how many rows are filled in all."""
    done = directory / _DONE
    for name, part in shapes.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != _bytes(part):
            done.unlink(missing_ok=True)
            # Allocated, so that a full disk fails now, not when a mapped page is written.
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _bytes(part))
    try:
        return int(json.loads(done.read_text())["rows"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # missing or damaged
        return 0


def _open(dataset: PackedDataset, directory: Path, shapes: _Shapes) -> PackedDataset:
    """Maps the files of the outputs."""
    parts = shapes.items()
    outputs = {n: np.memmap(directory / n, p.dtype, "r+", shape=p.shape) for n, p in parts}
    return dataclasses.replace(dataset, outputs=outputs)


def _computed(teacher: Teacher, dataset: PackedDataset, start: int) -> Iterator[_Part]:
    """Computes the rows from `start` on, some at a time; all processes take part."""
    config, mesh, options = teacher.config, teacher.mesh, teacher.options

    def run(params: Params, batch: Batch) -> TeacherOutputs:
        features, hidden = forward(config, params, batch, mesh, options)
        # As it is kept, since training computes logits from that; XLA may drop a mere cast.
        hidden = jax.lax.reduce_precision(hidden, exponent_bits=8, mantissa_bits=7)
        return TeacherOutputs(
            features.astype(jnp.bfloat16),
            hidden.astype(jnp.bfloat16),
            *over_vocabulary(config, params, hidden, mesh, options),
        )

    compiled = jit_replicated(run, mesh)
    groups = Devices(mesh).groups
    size = groups * -(-_ROWS // groups)
    for first in range(start, dataset.rows, size):
        rows = np.arange(first, min(first + size, dataset.rows))
        # Pad the last rows, so that one compiled program serves all.
        outputs = compiled(teacher.params, dataset.batch(np.resize(rows, size)))
        yield rows, TeacherOutputs(*(np.asarray(part)[: len(rows)] for part in outputs))


def _fill(cached: PackedDataset, parts: Iterator[_Part], start: int, done: Path) -> None:
    """Fills the rows from `start` on and records in the file `done` how many are filled."""
    end, kept = start, cached.outputs or {}

    def record() -> float:
        for array in kept.values():
            array.flush()
        write_atomically(done, json.dumps({"rows": end}).encode())
        return time.monotonic()

    with progress_bars() as progress:
        bar = progress.add_task("target's outputs", total=cached.rows, completed=start, note="")
        began = recorded = time.monotonic()
        try:
            for rows, outputs in parts:
                for name, part in outputs._asdict().items():
                    kept[name][rows] = part
                end = int(rows[-1]) + 1
                if time.monotonic() - recorded > _RECORD:
                    recorded = record()
                pace = (end - start) * cached.context / (time.monotonic() - began)
                progress.update(bar, completed=end, note=f"{end:,} rows, {pace:,.0f} tokens/s")
        finally:
            record()
