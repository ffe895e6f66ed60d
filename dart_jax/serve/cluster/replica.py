"""A replica: an engine in a process of Ray Serve."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator

import ray
from ray import serve

from dart_jax.errors import UserError
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.serve.cluster.messages import Busy, Message, Refused
from dart_jax.serve.cluster.totals import Report
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.engine import Engine, EngineClosed, EngineFailed
from dart_jax.serving.request import QueueFull, Request, Update

_logger = logging.getLogger(__name__)


class Replica:
    """Serves requests with an engine of its own. Ray Serve creates it, on any machine."""

    def __init__(self, choice: ModelChoice, serving: ServingConfig):
        """Loads the model and compiles its programs."""
        self._engine = Engine(choice.load(), serving)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._node = ray.util.get_node_ip_address()

    async def generate(self, request: Request) -> AsyncGenerator[Message, None]:
        """Serves a request; closing the iterator cancels it."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        inbox: list[Update | BaseException] = []

        def put(update: Update | BaseException) -> None:
            def deliver() -> None:
                inbox.append(update)
                news.set()

            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(deliver)

        try:
            ticket = self._engine.submit(request, put)
        except (QueueFull, EngineClosed):
            yield Busy()
            return
        except UserError as error:
            yield Refused(str(error))
            return
        try:
            while True:
                await news.wait()
                news.clear()
                received, inbox[:] = list(inbox), []
                updates = [each for each in received if isinstance(each, Update)]
                if updates:
                    yield updates
                    if updates[-1].finish is not None:
                        return
                for error in received:
                    if isinstance(error, EngineFailed):
                        # Nothing more can be done here; the requests go to other replicas, and
                        # Serve starts a new one.
                        _logger.error("the engine failed; the replica ends")
                        os._exit(1)
                    if isinstance(error, BaseException):
                        yield Refused(str(error))
                        return
        finally:
            ticket.cancel()

    def max_length(self) -> int:
        """Maximum length of a prompt and its new tokens together."""
        return self._engine.max_length

    def report(self) -> Report:
        """What it is and has done."""
        return Report(self._name, self._node, os.getpid(), self._engine.statistics())

    def check_health(self) -> None:
        """Called by Ray Serve now and then; a replica that raises is replaced."""
        if self._engine.statistics().failed:
            raise RuntimeError("the engine failed")

    def __del__(self) -> None:
        """Called by Ray Serve when the requests have ended, before it ends the process."""
        if hasattr(self, "_engine"):
            self._engine.close()
