"""All replicas as one engine, for the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.serve.cluster.messages import Busy, Message, Refused
from dart_jax.serve.cluster.resume import Diverged, Resumable
from dart_jax.serve.cluster.totals import ClusterStatistics, Report, Totals
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.engine import EngineClosed
from dart_jax.serving.request import OnUpdate, QueueFull, Request
from dart_jax.text.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

# So many replicas may be lost with a request before it is taken to be the reason.
MOST_LOSSES = 5

_REPORTS = 0.5  # seconds between two reports of the replicas
_PATIENCE = 5.0  # seconds until a replica that does not report counts as lost
_PAUSE = 0.1  # seconds before a request is sent again


@dataclasses.dataclass(frozen=True)
class RemoteModel:
    """What the server itself knows of the replicas' model; see `DartModel`."""

    target: TargetConfig
    tokenizer: Tokenizer
    eos: tuple[int, ...]


class Replicas(Protocol):
    """The running replicas."""

    def generate(self, request: Request) -> AsyncGenerator[Message, None]:
        """Sends a request to one of them. Ends early or raises anything if the replica is lost.
        Closing the iterator cancels the request."""
        ...

    async def reports(self, seconds: float) -> list[Report]:
        """What those tell that answer in this time."""
        ...

    def run(self) -> None:
        """Restarts them, a few at a time, without losing their requests."""
        ...

    def close(self) -> None:
        """Stops them."""
        ...


class Cluster:
    """Serves requests with several replicas; see `Engine`, whose interface it has.

    A request that is accepted is answered as long as any replica lives or is started: if its
    replica dies, it begins anew with another one, and what has been passed on already is skipped.

    Attributes:
      model: what is known here of the model.
      config: the options of all replicas together.
      max_length: maximum length of a prompt and its new tokens together.
    """

    def __init__(
        self,
        replicas: Replicas,
        model: RemoteModel,
        config: ServingConfig,
        max_length: int,
        most_replicas: int,
    ):
        """Starts the thread that speaks with the replicas.

        Args:
          replicas: serve the requests.
          model: what they serve.
          config: options of each of them.
          max_length: see the attributes.
          most_replicas: how many there may be.
        """
        self.model, self.max_length = model, max_length
        self.config = dataclasses.replace(
            config, slots=config.slots * most_replicas, queue=config.queue * most_replicas
        )
        self._replicas = replicas
        self._changed = threading.Condition()
        self._accepted = 0  # requests that have not ended
        self._accepting = True
        self._totals = Totals()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._run(self._take_report).result()
        self._run(self._watch)

    def submit(self, request: Request, on_update: OnUpdate) -> Ticket:
        """See `Engine.submit`; `on_update` is called on this object's thread."""
        request.check_fits(self.max_length, self.model.target.vocab_size)
        with self._changed:
            if not self._accepting:
                raise EngineClosed("the server is shutting down; try again later")
            if self._accepted >= self.config.slots + self.config.queue:
                raise QueueFull(
                    f"{self.config.queue} requests are waiting; try again in a moment", 1.0
                )
            self._accepted += 1
        future = self._run(self._serve, request, on_update)
        future.add_done_callback(self._ended)
        return Ticket(future)

    def statistics(self) -> ClusterStatistics:
        """A snapshot, at most a second old. Callable from any thread."""
        return self._totals.sum(self._accepted)

    def drain(self, seconds: float) -> bool:
        """See `Engine.drain`."""
        end = time.monotonic() + seconds
        with self._changed:
            self._accepting = False
            while self._accepted and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._accepted

    def close(self) -> None:
        """Cancels all requests, and ends the thread and the replicas."""
        with self._changed:
            self._accepting = False

        async def cancel_all() -> None:
            tasks = list(self._tasks - {asyncio.current_task()})
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        if self._thread.is_alive():
            self._run(cancel_all).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._replicas.close()

    def restart(self) -> None:
        """Restarts the replicas in the background, a few at a time, without losing requests."""

        def run() -> None:
            _logger.warning("the replicas are restarted")
            try:
                self._replicas.run()
            except Exception:
                _logger.exception("the restart failed")
            else:
                _logger.warning("the replicas have been restarted")

        threading.Thread(target=run, name="restart", daemon=True).start()

    def _run(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Future[None]:
        """Runs a coroutine function on the thread."""

        async def remembered() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await work(*arguments)
            finally:
                self._tasks.discard(task)

        return asyncio.run_coroutine_threadsafe(remembered(), self._loop)

    def _ended(self, _: Future[None]) -> None:
        with self._changed:
            self._accepted -= 1
            self._changed.notify_all()

    # What follows runs on the thread.

    async def _serve(self, request: Request, on_update: OnUpdate) -> None:
        try:
            await self._pass_on(request, on_update)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not isinstance(error, UserError):
                _logger.error("a request failed", exc_info=error)
            with contextlib.suppress(Exception):
                on_update(error)

    async def _pass_on(self, request: Request, on_update: OnUpdate) -> None:
        """Passes on the updates of one replica after the other until the text is complete."""
        text, losses = Resumable(request), 0
        while True:
            text.begin_again()
            messages = self._replicas.generate(text.request)
            try:
                async for message in messages:
                    if isinstance(message, Refused):
                        raise UserError(message.message)
                    if isinstance(message, Busy):
                        break
                    for update in map(text.push, message):
                        if update is None:
                            continue
                        on_update(update)
                        if update.finish is not None:
                            return
                else:
                    raise ConnectionError("the answer of a replica has no end")
            except UserError:
                raise
            except Diverged as error:
                _logger.warning("another replica gives another text %s; it is continued", error)
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # by us, not by a replica that is stopped
                losses += 1
                kind = type(error).__name__
                _logger.warning("a replica was lost during a request (%s); it is retried", kind)
                if losses == MOST_LOSSES:
                    raise UserError(f"{losses} replicas were lost during a request") from error
            finally:
                await messages.aclose()
            await asyncio.sleep(_PAUSE)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_REPORTS)
            await self._take_report()

    async def _take_report(self) -> None:
        try:
            self._totals.update(await self._replicas.reports(_PATIENCE))
        except Exception as error:
            _logger.warning("the replicas do not report: %s", error)


class Ticket:
    """A request that was accepted."""

    def __init__(self, future: Future[None]):
        self._future = future

    def cancel(self) -> None:
        """See `serving.engine.Ticket`."""
        self._future.cancel()
