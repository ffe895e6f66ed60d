"""The servers: started as processes of their own, or running already."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dart_jax.errors import UserError
from eval.serving.client.completion import Server
from eval.serving.client.connection import Address, fetch
from eval.serving.client.metrics import Counters

_ADDRESS = re.compile(r"https?://[\w.\-\[\]:]+:\d+")
# Seconds that a server may take to compile everything, to answer then, and to end.
_STARTING, ANSWERING, _ENDING = 1800.0, 10.0, 5.0


class Process:
    """A server that was started here.

    Attributes:
      pid: its process.
      address: where it listens.
      options: its command line.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str] | None = None):
        """Starts `python -m dart_jax.serve` at a free port and waits until it listens.

        Args:
          words: its options.
          environ: its environment; None for this process's.

        Raises:
          UserError: it ended before; with its own message.
        """
        self.options = shlex.join(words)
        self._lines: deque[str] = deque(maxlen=50)
        self._found: str | None = None
        self._told = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dart_jax.serve", "--port", "0", *words],
            env=None if environ is None else dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self.pid = self._process.pid
        # Goes on reading, so that the server never waits for room in the pipe.
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.address = self._wait()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            if self._found is None and (match := _ADDRESS.search(line)):
                self._found = match[0]
                self._told.set()
        self._told.set()

    def _wait(self) -> Address:
        self._told.wait(_STARTING)
        if self._found is not None:
            return Address.parse(self._found)
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        raise UserError(f"the server did not start: {self.last_line}")

    @property
    def last_line(self) -> str:
        """The last line that it wrote."""
        line = next((line for line in reversed(self._lines) if line.strip()), "no output")
        return line.strip().removeprefix("error: ")

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def server_environment(servers: int) -> dict[str, str]:
    """The environment of servers that share a device: each takes its part of the memory."""
    environ = {name: value for name, value in os.environ.items() if name != "DART_API_KEY"}
    chosen = {"XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"}
    if not chosen & environ.keys():
        environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / servers:.2f}"
    return environ


@contextlib.contextmanager
def start_servers(
    options: Mapping[str, Sequence[str]],
    environ: Mapping[str, str],
    notify: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Process]]:
    """Starts servers one after the other; ends them with the block.

    Args:
      options: of each server, by its name.
      environ: their environment.
      notify: is told what is being started.

    Raises:
      UserError: one did not start.
    """
    with contextlib.ExitStack() as stack:
        started = {}
        for name, words in options.items():
            notify(f"starting the {name} server")
            started[name] = stack.enter_context(Process(words, environ))
        yield started


def find_server(address: Address, patience: float = 0.0) -> Server:
    """Asks a server for its model.

    Args:
      address: the server's.
      patience: seconds for which it may not listen yet.

    Raises:
      UserError: it does not answer as an OpenAI-compatible server does.
    """
    end = time.monotonic() + patience
    while True:
        try:
            status, body = asyncio.run(fetch(address, "/v1/models"))
            if status != 200:
                raise UserError(f"{address}/v1/models answers with status {status}")
            return Server(address, json.loads(body)["data"][0]["id"])
        except (ConnectionError, TimeoutError) as error:
            if time.monotonic() > end:
                raise UserError(f"no server answers at {address}: {error}") from None
        except OSError as error:
            raise UserError(f"no server answers at {address}: {error}") from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise UserError(f"{address}/v1/models lists no model; is it a server?") from None
        time.sleep(0.2)


async def scrape(server: Server) -> Counters | None:
    """A server's counters; None if it has none."""
    try:
        status, body = await fetch(server.address, "/metrics")
    except OSError:
        return None
    return Counters.read(body.decode("utf-8", "replace")) if status == 200 else None


def resident_memory(pid: int) -> int | None:
    """Resident memory of a process and those that it started, in bytes; None if unknown here."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        try:
            status = Path(f"/proc/{one}/status").read_text()
            for task in Path(f"/proc/{one}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            if one == pid:
                return None
            continue
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        total += int(found[1]) * 1024 if found else 0
    return total
