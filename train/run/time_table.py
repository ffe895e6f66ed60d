"""How much of its time each stage of a program has spent, also when it is interrupted."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_jax.files import write_atomically

_RECORD = 10.0  # seconds between records of the time, of which a killed process loses the rest
_LEAST = 0.05  # minutes that a stage gets when it goes on


class TimeTable:
    """The stages that began: minutes spent, and whether they are done.

    What a stage takes beyond its minutes is not taken from the others.
    """

    def __init__(self, path: Path):
        """Reads the table from its file, if there is one."""
        self._path = path
        self._stages: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    @property
    def begun(self) -> bool:
        """Whether a stage has begun."""
        return bool(self._stages)

    @contextlib.contextmanager
    def stage(self, name: str, minutes: float) -> Iterator[float]:
        """Runs a stage; it is done unless an exception ends it.

        Args:
          name: the stage.
          minutes: its time.

        Yields:
          The minutes that it has left; 0 if it is done.
        """
        entry = self._stages.setdefault(name, {"spent": 0.0, "done": False})
        if entry["done"]:
            yield 0.0
            return
        before, began, ended = entry["spent"], time.monotonic(), threading.Event()

        def record() -> None:
            entry["spent"] = round(before + (time.monotonic() - began) / 60, 3)
            write_atomically(self._path, json.dumps(self._stages, indent=2).encode())

        def keep_recording() -> None:
            while not ended.wait(_RECORD):
                record()

        record()
        recording = threading.Thread(target=keep_recording, daemon=True)
        recording.start()
        try:
            yield max(minutes - before, _LEAST)
            entry["done"] = True
        finally:
            ended.set()
            recording.join()
            record()
