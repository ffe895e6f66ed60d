"""An engine in a process of its own.

Engines bring thread pools that disturb each other, and settings for the whole process; and the
processor time of one process is the engine's alone.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.interruption import HeldBack
from eval.peers.engine import Decoded, Setup
from eval.peers.registry import ENGINES

# Seconds that a worker may take to end by itself.
_PATIENCE = 5


class EngineError(UserError):
    """An engine could not load or run the model."""


class Worker:
    """A process that has loaded an engine. A context manager; ends with this process, however that
    ends."""

    def __init__(self, setup: Setup):
        """Starts the process and loads the model; raises EngineError if the engine cannot."""
        context = multiprocessing.get_context("spawn")
        self.setup = setup
        self._log = setup.work / f"{setup.name}-{setup.precision}-{setup.threads}.log"
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, setup, self._log), name=setup.name, daemon=True
        )
        with HeldBack():
            self._process.start()
        other.close()
        try:
            self.precision: str = self._receive()
        except BaseException:
            self.close()
            raise

    def decode(self, prompt: np.ndarray, new_tokens: int) -> Decoded:
        """As `Engine.decode`; raises EngineError if the engine fails."""
        self._pipe.send((prompt, new_tokens))
        return self._receive()

    def _receive(self) -> Any:
        try:
            result = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(_PATIENCE)
            lines = _read(self._log).strip().splitlines()
            last = lines[-1] if lines else "no output"
            status = self._process.exitcode
            raise EngineError(f"its process ended with status {status}: {last}") from None
        if isinstance(result, EngineError):
            raise result
        return result

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _read(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:
        return ""  # it ended before it opened the file


def _serve(pipe: connection.Connection, setup: Setup, log: Path) -> None:
    """Loads the engine, then decodes what is asked for until the pipe closes."""
    _end_with_parent()
    # Converters and engines print much on both streams, some of it from C++.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    try:
        module = importlib.import_module(f"eval.peers.engines.{ENGINES[setup.name].module}")
        engine = module.load(setup)
        pipe.send(engine.precision)
        while True:
            pipe.send(engine.decode(*pipe.recv()))
    except EOFError:
        pass  # no more prompts
    except Exception as error:  # whatever a package raises
        lines = str(error).strip().splitlines() or [""]
        what = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        pipe.send(EngineError(what + lines[0]))


def _end_with_parent() -> None:
    """Makes this process exit when its parent does, even in the middle of a computation."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
