"""The metrics of a run: one JSON object per step, and optional TensorBoard files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.files import atomic_path


class Metrics:
    """Appends to `metrics.jsonl`, starting at the step from which a run resumes.

    Lines of later steps, which will run again, are removed.
    """

    def __init__(self, directory: Path, step: int, *, tensorboard: bool = False):
        """Opens the file of a run that has done `step` updates."""
        self._path = path = directory / "metrics.jsonl"
        if path.is_file():
            with path.open("rb") as old, atomic_path(path) as part, part.open("wb") as new:
                new.writelines(line for line in old if 0 < _step(line) <= step)
        self._board = _open_board(directory, step) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        """Writes one step's figures, which include `step`."""
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for name, value in record.items():
                if name != "step":
                    self._board.add_scalar(name, value, record["step"])

    def sync(self) -> None:
        """Flushes the file to disk."""
        with self._path.open("a") as file:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the TensorBoard files."""
        if self._board is not None:
            self._board.close()


def _step(line: bytes) -> int:
    """Returns the step of a record; 0 for a line that a killed process left incomplete."""
    try:
        return json.loads(line)["step"] if line.endswith(b"\n") else 0
    except (ValueError, KeyError, TypeError):
        return 0


def _open_board(directory: Path, step: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs a package: pip install tensorboardX") from None
    return SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1, flush_secs=10)
