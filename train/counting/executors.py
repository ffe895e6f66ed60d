"""Where tasks run: in processes of this machine, or on a Ray cluster.

A task is a function of a module and arguments that can be pickled; it leaves its result in files.
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
from dart_jax.memory import peak_memory


class Executor(abc.ABC):
    """Runs tasks.

    Attributes:
      workers: how many tasks run at a time.
      peaks: peak memory of every process that ran one, in bytes.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self.peaks: dict[str, int] = {}

    def map(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """Results in the tasks' order; tasks are made when needed, two a worker in advance."""
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
        """Begins `_measured(function, *arguments)`."""

    @abc.abstractmethod
    def _result(self, submitted: Any) -> tuple[Any, str, int]:
        """Waits for it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends everything, tasks that still run included."""

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalExecutor(Executor):
    """Processes of this machine, which end with this one however it ends."""

    def __init__(self, workers: int):
        super().__init__(workers)
        context = multiprocessing.get_context("spawn")
        # Nothing is ever sent. The other end closes when this process closes it or is gone.
        watched, self._alive = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_watch, initargs=(watched,)
        )
        self._watched = watched  # kept open until workers have theirs

    def _submit(self, function: Callable, *arguments: Any) -> Any:
        with _told():
            return self._pool.submit(_measured, function, *arguments)

    def _result(self, submitted: Any) -> tuple[Any, str, int]:
        with _told():
            return submitted.result()

    def close(self) -> None:
        self._alive.close()
        self._pool.shutdown(cancel_futures=True)
        self._watched.close()


class RayExecutor(Executor):
    """A Ray cluster: one that runs, or one made on this machine."""

    def __init__(self, address: str | None, workers: int | None):
        """Connects.

        Args:
          address: of a running cluster; None starts one here.
          workers: tasks at a time; None takes every core of the cluster.

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
        if address is None:  # all on this machine, and nothing told to anybody
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
            options |= {"address": "local", "num_cpus": workers, "include_dashboard": False}
            options |= {"_node_ip_address": "127.0.0.1"}
        else:
            options |= {"address": address}
        try:
            if address is not None and address != "auto" and "://" not in address:
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), 10).close()  # Ray tries for minutes
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
            raise UserError(f"Ray lost a task: {reason}; run again to go on") from None

    def close(self) -> None:
        self._ray.shutdown()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Around the use of a pool: a worker that was killed is told in one line.

    Raises:
      UserError: one was.
    """
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps for want of memory; run again with less "
            "--memory or fewer --workers, what is done stays done"
        ) from None


def _measured(function: Callable, *arguments: Any) -> tuple[Any, str, int]:
    """A task's result, the process it ran in, and that process's peak memory."""
    result = function(*arguments)
    return result, f"{socket.gethostname()}:{os.getpid()}", peak_memory()


def _watch(watched: Connection) -> None:
    """Ends this worker with the process that began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process sees to it

    def wait() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
