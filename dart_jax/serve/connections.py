"""Connections, as uvicorn serves them: one that begins no request in time is closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from h11 import LocalProtocolError
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dart_jax.serve.body.errors import CLOSE, unavailable

# Seconds in which a request's headers must come.
_PATIENCE = 20.0

# Seconds for which an idle connection stays open: longer than most clients keep theirs, which would
# otherwise send a request while it is being closed.
_KEEP_ALIVE = 75


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


def http(app: ASGIApp) -> uvicorn.Config:
    """Returns how uvicorn serves an application. Faults are logged where they happen; its own
    messages add nothing."""
    return uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
    )


@contextlib.contextmanager
def starting(listening: socket.socket) -> Iterator[None]:
    """Listens, and answers everybody with status 503, on a thread, until the server is there."""
    config = http(_starting)
    config.timeout_graceful_shutdown = 1  # seconds that a request which is arriving has
    server = uvicorn.Server(config)
    # The server closes its copy; the socket listens on.
    thread = threading.Thread(target=server.run, args=([listening.dup()],), name="starting")
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


async def _starting(scope: Scope, receive: Receive, send: Send) -> None:
    error = unavailable("the server is starting; try again later", CLOSE)
    await error.response(scope, receive, send)
