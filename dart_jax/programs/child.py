"""New processes: for work that is measured from its start, or that brings threads of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any, Self

from dart_jax.errors import UserError


class HeldBack:
    """Holds Ctrl-C back in this thread; processes started in the block never receive it.

    They inherit the signal mask. Their parent handles the interruption, once.
    """

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def __exit__(self, *error: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


class ChildError(UserError):
    """A function failed in a child, or its process ended."""


class Child:
    """A new process that calls functions for this one.

    A context manager: the process ends with the block, and with this process, however that ends.
    """

    def __init__(self, log: Path | None = None):
        """Starts the process; what it prints goes to the file `log`, if one is given."""
        context = multiprocessing.get_context("spawn")
        self._log = log
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, log), daemon=True)
        with HeldBack():
            self._process.start()
        other.close()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of a module in the process; returns what it returns.

        Raises:
          ChildError: it raised anything but a UserError, or the process ended.
          UserError: it raised one.
        """
        try:
            self._pipe.send((function, args))
            result = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            text = self._log.read_text(errors="replace") if self._log and self._log.exists() else ""
            last = (text.strip().splitlines() or ["no output"])[-1]
            status = self._process.exitcode
            raise ChildError(f"its process ended with status {status}: {last}") from None
        if isinstance(result, UserError):
            raise result
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: connection.Connection, log: Path | None) -> None:
    """Calls what it is asked to until it is killed, or the pipe closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if log is not None:
        # Libraries also print from C++.
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            result = function(*args)
        except UserError as error:
            result = error
        except Exception as error:  # whatever a package raises
            first = (str(error).strip().splitlines() or [""])[0]
            result = ChildError(f"{type(error).__name__}: {first}")
        pipe.send(result)


def _end_with_parent() -> None:
    """Ends this process when its parent ends, even in the middle of a computation."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
