"""Trials of grammars in processes apart, before the server compiles them itself.

A client's grammar may need more time or memory than there is, or break the compiler. So a process
that does nothing else, started with the first grammar, makes a copy of itself for each one, and the
copy compiles it: it ends after a limited time of a core, and as soon as nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import tokenizers

from dart_jax.errors import UserError
from dart_jax.grammar.limits import GrammarLimits
from dart_jax.grammar.matching import STACK, Grammars, on_large_stack
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.text.tokenizer import Tokenizer

_Result = TypeVar("_Result")

# Grammars that are tried at the same time, and those whose outcome is remembered.
_AT_ONCE, _KEPT = 2, 256

# Bytes of memory that a trial may take.
_MEMORY = 2**30

# How much others go before the trials; see nice(2).
_NICE = 5


class Trials:
    """Tries grammars for one target, and compiles those that pass. For one event loop."""

    def __init__(self, grammars: Grammars, limits: GrammarLimits):
        """Starts nothing yet.

        Args:
          grammars: compiles them in this process.
          limits: of what clients may ask for.
        """
        self._grammars, self._limits = grammars, limits
        self._passed: dict[str, str] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._process: _Process | None = None

    async def check(self, outputs: StructuredOutputs, size: int | None = None) -> str:
        """Returns the source of a grammar, which is compiled then, for `Grammars.start`.

        Args:
          outputs: what the grammar is of.
          size: bytes of what the client wrote, by default the size of `outputs`.

        Raises:
          UserError: the grammar is wrong, or beyond a limit.
        """
        self._limits.check_size(outputs.kind, outputs.size if size is None else size)
        try:
            key = json.dumps(dataclasses.asdict(outputs))
        except RecursionError:
            raise UserError(f"{outputs.kind} is nested too deep; make it flatter") from None
        source = self._passed.pop(key, None)
        if source is None:
            async with self._places:
                source = await self._try(outputs.kind, key)
        self._passed[key] = source
        while len(self._passed) > _KEPT:  # the one that was asked for last comes last
            del self._passed[next(iter(self._passed))]
        if not self._grammars.has(source):
            await off_loop(lambda: self._grammars.load(source))
        return source

    def close(self) -> None:
        """Ends the process, and with it what it still tries."""
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _try(self, kind: str, job: str) -> str:
        began = time.monotonic()
        answer = await self._answer(job)
        if "source" in answer:
            return answer["source"]
        if "error" in answer:
            raise UserError(answer["error"])
        if self._process is None or self._process.ended:
            raise UserError("the process that tries grammars has ended; try again")
        if time.monotonic() - began >= self._limits.seconds:
            raise UserError(
                f"{kind} takes longer than {self._limits.seconds:g} s to compile, the most of "
                "--grammar-seconds; make it simpler"
            )
        raise UserError(f"{kind} is too large or too deep for the compiler; make it simpler")

    async def _answer(self, job: str) -> dict[str, str]:
        """Returns the answer of a trial; empty if it ended without one."""
        if self._process is not None and self._process.ended:
            self.close()
        if self._process is None:
            self._process = _Process(self._grammars, self._limits.seconds)
        reader, writer = await asyncio.open_unix_connection(sock=self._process.begin())
        try:
            sent = job.encode()
            writer.write(len(sent).to_bytes(8) + sent)
            return json.loads(await reader.read() or b"{}")
        except ConnectionError:
            return {}
        finally:
            writer.close()


async def off_loop(function: Callable[[], _Result]) -> _Result:
    """Calls a function while the event loop goes on, on none of the threads that encode prompts."""
    return await asyncio.wrap_future(on_large_stack(function))


class _Process:
    """The process of which the trials are copies."""

    def __init__(self, grammars: Grammars, seconds: float):
        """Starts it; see `main`."""
        self._control, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as origin:
            origin.write(json.dumps([*grammars.origin, seconds]).encode())
            origin.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dart_jax.grammar.trials", str(theirs.fileno())],
                stdin=origin,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the server, which ends it
                # Threads would not live on in its copies.
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"},
            )

    @property
    def ended(self) -> bool:
        """True if it has ended by itself."""
        return self._process.poll() is not None

    def begin(self) -> socket.socket:
        """Begins a trial; returns the connection with it."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # it has ended: so does the connection
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """Ends it, and its copies: those find that nobody waits for them."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Makes a copy of this process for each connection that comes over the socket whose number is
    the argument. Standard input has what `Grammars.origin` says, and seconds."""
    tokenizer, vocab_size, eos, seconds = json.load(sys.stdin)
    backend = tokenizers.Tokenizer.from_str(tokenizer)
    grammars = Grammars(Tokenizer(backend), vocab_size, tuple(eos))
    with contextlib.suppress(UserError):  # which every trial finds again
        grammars.check(StructuredOutputs(regex="a"))
    os.nice(_NICE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            _, connections, _, _ = socket.recv_fds(control, 1, 1)
            if not connections:
                return
            if not os.fork():
                control.close()
                _try(grammars, socket.socket(fileno=connections[0]), seconds)
            os.close(connections[0])


def _try(grammars: Grammars, connection: socket.socket, seconds: float) -> None:
    """Tries the grammar that a connection sends; ends this process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the last words of a compiler
    job = connection.makefile("rb")
    outputs = StructuredOutputs(**json.loads(job.read(int.from_bytes(job.read(8)))))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = now + 2 * STACK + _MEMORY  # the second stack is the compiler's
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def answer() -> None:
        try:
            try:
                said = {"source": grammars.check(outputs)}
            except UserError as error:
                said = {"error": str(error)}
            connection.sendall(json.dumps(said).encode())
        finally:
            os._exit(0)

    on_large_stack(answer)
    job.read(1)  # nobody waits any more
    os._exit(1)


if __name__ == "__main__":
    main()
