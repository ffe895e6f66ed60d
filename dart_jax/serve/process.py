"""The server's process: its socket, its signals, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from dart_jax.errors import UserError
from dart_jax.serve.app import LOGGER, RequestLog, make_app
from dart_jax.serve.body.errors import unavailable
from dart_jax.serve.connections import http
from dart_jax.serve.service import Service

# Seconds between two reports in the log.
_REPORTS = 10

# Seconds in which clients may still read what has been generated when the time is up.
_GRACE = 2


def open_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at this address, so that nobody else takes it.

    Args:
      host: name or address of an interface.
      port: 0 for any free one.

    Raises:
      UserError: the address does not exist or is in use.
    """
    six = ":" in host
    family = socket.AF_INET6 if six else socket.AF_INET
    both = six and socket.has_dualstack_ipv6()  # all of IPv6 is all of IPv4 as well
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise UserError(f"cannot listen at {host}, port {port}: {reason}") from None


def address_of(listening: socket.socket) -> str:
    """Returns the URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT, and then lets the running answers finish.

    Until they have, it still answers: with status 503 to new requests and to /health, so that load
    balancers turn away. A second signal ends everything at once.
    """

    def __init__(self, service: Service, drain: float, ready: Callable[[], None]):
        """Serves nothing yet.

        Args:
          service: what is served.
          drain: seconds that running answers have.
          ready: called once requests are accepted.
        """
        super().__init__(http(RequestLog(make_app(service))))
        self.service, self._drain, self._ready = service, drain, ready
        self._ending: asyncio.Task[None] | None = None
        self._hurried = False  # by a second signal

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        self._reports = asyncio.ensure_future(self._report())
        self._ready()

    async def _report(self) -> None:
        """Logs what the engine does, now and then while it does anything."""
        before, log = self.service.engine.statistics(), logging.getLogger(LOGGER)
        while log.isEnabledFor(logging.INFO):
            await asyncio.sleep(_REPORTS)
            now = self.service.engine.statistics()
            tokens = now.generation_tokens - before.generation_tokens
            drafts = now.drafts - before.drafts
            accepted = (now.accepted_tokens - before.accepted_tokens) / max(drafts, 1)
            if tokens or now.running or now.waiting:
                log.info(
                    "%d running, %d waiting; %.0f tokens/s, %.2f per drafted step; %.0f%% of keys "
                    "and values",
                    now.running,
                    now.waiting,
                    tokens / _REPORTS,
                    1 + accepted,
                    100 * now.pages_used / max(now.pages, 1),
                )
            before = now

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Takes a signal; unlike uvicorn, does not raise it anew at the end."""
        asyncio.get_running_loop().call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._finish())
        else:
            self._hurried = True
            self._abort()

    async def _finish(self) -> None:
        """Waits for the running answers, and ends those that take too long."""
        service, end = self.service, time.monotonic() + self._drain
        service.draining = True
        if await asyncio.to_thread(service.engine.drain, self._drain):
            end = max(end, time.monotonic() + _GRACE)
        # The generated tokens must still be sent.
        while service.running and time.monotonic() < end and not self._hurried:
            await asyncio.sleep(0.02)
        self._abort()
        self.config.timeout_graceful_shutdown = _GRACE
        self.should_exit = True

    def _abort(self) -> None:
        for texts in list(self.service.running):
            texts.abort(unavailable("the server was stopped before the answer was complete"))
