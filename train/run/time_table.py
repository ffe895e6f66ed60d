"""How the time of a program is divided among its stages, also when it is interrupted."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_jax.files import write_atomically

_LEAST = 0.05  # minutes of a stage


class TimeTable:
    """The stages that began: how many minutes each got, how many it has spent, whether it is done.

    What a stage spends beyond its minutes, to load and to compile, is not taken from the others.
    """

    def __init__(self, path: Path, minutes: float):
        """Reads the table, if there is one.

        Args:
          path: the file.
          minutes: for all stages together; may change as long as a stage is to come.
        """
        self._path, self._minutes = path, minutes
        self._stages: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    @property
    def begun(self) -> bool:
        """Whether a stage has begun."""
        return bool(self._stages)

    def given(self, name: str) -> float:
        """The minutes of a stage that began."""
        return self._stages[name]["minutes"]

    @contextlib.contextmanager
    def stage(self, name: str, part: float, like: str | None = None) -> Iterator[float]:
        """Runs a stage; it is done unless an exception ends it.

        Args:
          name: the stage.
          part: of the minutes that are left when it first begins.
          like: a stage as long as which it takes, instead.

        Yields:
          The minutes that it has left; 0 if it is done.
        """
        if name not in self._stages:
            left = self._minutes - sum(stage["minutes"] for stage in self._stages.values())
            minutes = self.given(like) if like is not None else max(part * left, _LEAST)
            self._stages[name] = {"minutes": round(minutes, 3), "spent": 0.0, "done": False}
        entry = self._stages[name]
        if entry["done"]:
            yield 0.0
            return
        self._save()
        began = time.monotonic()
        try:
            yield max(entry["minutes"] - entry["spent"], _LEAST)
            entry["done"] = True
        finally:
            entry["spent"] = round(entry["spent"] + (time.monotonic() - began) / 60, 3)
            self._save()

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(self._stages, indent=2).encode())
