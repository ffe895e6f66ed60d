"""Executors of tasks: local processes, or a Ray cluster.

A task is a module-level function with picklable arguments; it writes its results to files.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

from dart_jax.errors import UserError
from dart_jax.interruption import HeldBack
from dart_jax.memory import peak_memory


class Executor(abc.ABC):
    """Runs tasks.

    Attributes:
      workers: number of tasks that run at a time.
      peaks: peak memory of each process that ran a task, in bytes.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self.peaks: dict[str, int] = {}

    def map(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """Yields results in task order; submits lazily, at most two tasks per worker ahead."""
        waiting: deque[Any] = deque()
        for task in tasks:
            waiting.append(self._submit(function, *task))
            if len(waiting) == 2 * self.workers:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def _next(self, waiting: deque[Any]) -> Any:
        result, process, peak = self._result(waiting.popleft())
        self.peaks[process] = max(peak, self.peaks.get(process, 0))
        return result

    @abc.abstractmethod
    def _submit(self, function: Callable, *arguments: Any) -> Any:
        """Submits `_measured(function, *arguments)`."""

    @abc.abstractmethod
    def _result(self, submitted: Any) -> tuple[Any, str, int]:
        """Waits for the result of `_measured`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stops everything, including running tasks."""

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalExecutor(Executor):
    """Local processes, which exit when this process ends, however it ends."""

    def __init__(self, workers: int):
        super().__init__(workers)
        context = multiprocessing.get_context("spawn")
        # A pipe that carries no data: it closes when this process closes it or exits.
        watched, self._alive = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_watch, initargs=(watched,)
        )
        self._watched = watched  # kept open until the workers have inherited it

    def _submit(self, function: Callable, *arguments: Any) -> Any:
        with _report_killed_workers(), HeldBack():  # the first call starts the workers
            return self._pool.submit(_measured, function, *arguments)

    def _result(self, submitted: Any) -> tuple[Any, str, int]:
        with _report_killed_workers():
            return submitted.result()

    def close(self) -> None:
        self._alive.close()
        self._pool.shutdown(cancel_futures=True)
        self._watched.close()


class RayExecutor(Executor):
    """A Ray cluster: an existing one, or one started on this machine."""

    def __init__(self, address: str | None, workers: int | None):
        """Connects.

        Args:
          address: address of a running cluster; None starts one on this machine.
          workers: tasks at a time; None uses every core of the cluster.

        Raises:
          UserError: Ray is not installed, or there is no cluster.
        """
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise UserError("--ray needs a package: pip install 'dart-jax[ray]'") from None
        self._ray = ray
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:  # local only, without usage statistics
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
            options |= {"address": "local", "num_cpus": workers, "include_dashboard": False}
            options |= {"_node_ip_address": "127.0.0.1"}
        else:
            options |= {"address": address}
        try:
            if address is not None and address != "auto" and "://" not in address:
                host, _, port = address.rpartition(":")
                socket.create_connection(
                    (host, int(port)), 10
                ).close()  # fail fast: Ray retries for minutes
            ray.init(**options)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise UserError(f"cannot reach a Ray cluster at {address}: {reason}") from None
        super().__init__(workers or int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(_measured)

    def _submit(self, function: Callable, *arguments: Any) -> Any:
        return self._remote.remote(function, *arguments)

    def _result(self, submitted: Any) -> tuple[Any, str, int]:
        try:
            return self._ray.get(submitted)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise UserError(f"Ray lost a task: {reason}; run again to resume") from None

    def close(self) -> None:
        self._ray.shutdown()


@contextlib.contextmanager
def _report_killed_workers() -> Iterator[None]:
    """Wraps uses of a pool, to report killed workers in one line.

    Raises:
      UserError: a worker was killed.
    """
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps for lack of memory; run again with less "
            "--memory or fewer --workers to resume"
        ) from None


def _measured(function: Callable, *arguments: Any) -> tuple[Any, str, int]:
    """Runs a task; returns its result, the name of its process, and the process's peak memory."""
    result = function(*arguments)
    return result, f"{socket.gethostname()}:{os.getpid()}", peak_memory()


def _watch(watched: Connection) -> None:
    """Makes this worker exit when its parent process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it

    def wait() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
