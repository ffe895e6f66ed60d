"""A replica: an engine in a process of Ray Serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Output, Request
from dart_jax.engine.statistics import Statistics
from dart_jax.engine.thread import EngineThread
from dart_jax.programs.model_choice import ModelChoice


class Replica:
    """Serves requests with an engine of its own. Ray Serve creates it, on any machine."""

    def __init__(self, choice: ModelChoice, serving: EngineConfig):
        """Loads the model and compiles its programs."""
        self._engine = EngineThread(choice.load(), serving)

    async def generate(self, request: Request) -> AsyncGenerator[tuple[float, list[Output]], None]:
        """Yields seconds since the request got its slot, and what is new of its text; closing the
        iterator cancels the request. Raises the errors of `EngineThread.submit`, and the engine's
        failure."""
        if request.grammar is not None:
            await asyncio.to_thread(self._engine.model.grammars.load, request.grammar)
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Output] = asyncio.Queue()
        ticket = self._engine.submit(
            request, lambda output: loop.call_soon_threadsafe(inbox.put_nowait, output)
        )
        try:
            ended = False
            while not ended:
                outputs = [await inbox.get()] + [inbox.get_nowait() for _ in range(inbox.qsize())]
                if outputs[-1].error is not None:
                    raise RuntimeError("the request failed") from outputs[-1].error
                now, ended = time.monotonic(), outputs[-1].last
                yield now - (ticket.begun or now), outputs
        finally:
            ticket.cancel()

    def max_length(self) -> int:
        """Returns the maximum length of a prompt and its new tokens together."""
        return self._engine.max_length

    def statistics(self) -> Statistics:
        """Returns the engine's counts."""
        return self._engine.statistics()

    def check_health(self) -> None:
        """Raises RuntimeError if the engine failed: Ray Serve then replaces this replica."""
        if self._engine.statistics().failed:
            raise RuntimeError("the engine failed")
