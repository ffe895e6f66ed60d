"""The server's process, by uvicorn: its socket, its connections, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from h11 import LocalProtocolError
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from dart_jax.errors import UserError
from dart_jax.serve.answer import LOGGER
from dart_jax.serve.app import make_app
from dart_jax.serve.service import Service

# Seconds between two reports in the log.
_REPORTS = 10

# Seconds in which a request's headers must come.
_PATIENCE = 20.0

# Seconds for which an idle connection stays open: longer than most clients keep theirs, which would
# otherwise send a request while it is being closed.
_KEEP_ALIVE = 75


def open_socket(host: str, port: int) -> socket.socket:
    """Returns a socket with this address. It does not listen yet: until the server is ready,
    connections are refused.

    Args:
      host: name or address of an interface.
      port: 0 for any free one.

    Raises:
      UserError: the address does not exist or is in use.
    """
    six = ":" in host
    opened = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if six and socket.has_dualstack_ipv6():  # all of IPv6 is all of IPv4 as well
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise UserError(f"cannot listen at {host}, port {port}: {error.strerror}") from None
    return opened


def address_of(opened: socket.socket) -> str:
    """Returns the URL of a socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connection(H11Protocol):
    """A connection that is closed if headers do not come in time, which uvicorn does not limit."""

    _timer: asyncio.TimerHandle | None = None  # while no request is answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Reads on."""
        super().data_received(data)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request; once an answer has begun, the connection only ends."""
        with contextlib.suppress(LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()

    def _watch(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._timer = self._timer or self.loop.call_later(_PATIENCE, self.transport.close)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None


def http(app: ASGIApp, drain: float | None = None) -> uvicorn.Config:
    """Returns how uvicorn serves an application, which has `drain` seconds for running answers in
    the end. Faults are logged where they happen."""
    return uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=drain,  # type: ignore[arg-type]  # fractions work as well
    )


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT. Then it takes no new connections, and lets the running
    answers finish; a second signal ends everything at once."""

    def __init__(self, service: Service, drain: float, ready: Callable[[], None]):
        """Serves nothing yet.

        Args:
          service: what is served.
          drain: seconds that running answers have.
          ready: called once requests are accepted.
        """
        super().__init__(http(make_app(service), drain))
        self.service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        try:
            for each in sockets or ():
                each.listen(self.config.backlog)  # uvloop passes over an error of this
        except OSError as error:  # meanwhile another process listens at the address
            raise UserError(f"cannot listen: {error.strerror}") from None
        await super().startup(sockets)
        self._reports = asyncio.ensure_future(self._report())
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Takes a signal; unlike uvicorn, does not raise it again at the end."""
        self.force_exit, self.should_exit = self.should_exit, True

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
