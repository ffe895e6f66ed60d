"""Checkpoints of a run, written in the background and atomically."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orbax.checkpoint import v1 as ocp

from dart_jax.errors import UserError
from dart_jax.files import writing
from train.run.step import TrainState
from train.run.work_directory import check_same

_PATIENCE = 300  # seconds that a process waits for others to finish a checkpoint: one may fail

# What orbax raises if files are missing, truncated or of another shape.
_DAMAGED = (OSError, ValueError, KeyError, TypeError)


class Checkpoints:
    """The newest checkpoints of a run."""

    def __init__(self, directory: Path, keep: int, settings: Mapping[str, Any]):
        """Opens or creates the directory, for the `keep` newest checkpoints; removes those that
        a killed run left half-written. `settings` must not change when a run resumes, by option
        name."""
        # orbax raises its errors as exceptions; its log would print each a second time.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._directory, self._settings = directory, json.loads(json.dumps(settings))
        newest: Any = ocp.training.preservation_policies.LatestN(keep)
        patience = ocp.options.AsyncOptions(timeout_secs=_PATIENCE)
        with writing("checkpoints", directory.parent):
            self._checkpointer = ocp.training.Checkpointer(
                os.path.abspath(directory),
                context=ocp.Context(async_options=patience),
                preservation_policy=newest,
                cleanup_tmp_directories=True,
            )

    def resume(self, abstract: TrainState) -> tuple[int, float, TrainState] | None:
        """Returns the newest checkpoint's step, seconds of training and state, with the shapes,
        dtypes and shardings of `abstract`, or None; raises UserError if the run was started with
        other settings, or the checkpoint cannot be read."""
        if not self._checkpointer.checkpoints:
            return None
        newest = self._checkpointer.checkpoints[-1]
        try:
            seconds = self._check(newest.step)
            loaded = self._checkpointer.load_checkpointables(newest.step, abstract._asdict())
        except _DAMAGED as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(
                f"the checkpoint {newest.path} cannot be read: {reason}; delete it to go on from "
                "the one before, or from the beginning if there is none"
            ) from error
        return newest.step, seconds, TrainState(**loaded)

    def save(self, step: int, seconds: float, state: TrainState) -> None:
        """Starts writing the state after `step` updates, which took `seconds`; it may be donated
        afterwards. Waits for the previous save, and raises its error if it failed."""
        with self._writing():
            self._checkpointer.save_checkpointables_async(
                step,
                state._asdict(),
                force=True,  # orbax would skip it while the previous one is still being written
                custom_metadata={"step": step, "seconds": seconds, "settings": self._settings},
            )

    def close(self) -> None:
        """Waits until everything is written."""
        with self._writing():
            self._checkpointer.close()

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        def remains() -> str:
            whole = whole_steps(self._directory)
            return f"; the checkpoint of step {whole[-1]} still loads" if whole else ""

        return writing("a checkpoint", self._directory, remains)

    def _check(self, step: int) -> float:
        """Compares the settings of a checkpoint; returns its seconds of training."""
        metadata: Any = self._checkpointer.checkpointables_metadata(step).custom_metadata
        saved, now = (
            {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
            for settings in (metadata["settings"], self._settings)
        )
        check_same(f"{self._directory} holds checkpoints, made", saved, now, "another directory")
        return metadata.get("seconds", 0.0)


def whole_steps(directory: Path) -> list[int]:
    """Returns the steps of the completely written checkpoints, ascending."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
