"""Connections: those that send nothing are closed, those that come too early are answered, and so
are those that say that they will send no more."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dart_jax.serve.errors import CLOSE, ApiError, unavailable

# Seconds in which a request's headers must come, between two parts of its body, and for all of it.
_PATIENCE, _MOST_BODY = 20.0, 120.0

# Seconds after the end of what a client sends, again and again, at which it is tried whether it
# still reads: one that has gone looks the same until something is sent to it.
_TRIED = 0.2

# Bytes of a request's first line and headers.
_MOST_HEAD = 65_536

# Seconds for which an idle connection stays open: longer than most clients keep theirs, which would
# otherwise send a request while it is being closed.
_KEEP_ALIVE = 75

# Java's client asks for HTTP/2 in this way; the parser would take the body for that already.
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """A connection that ends where a request begins and does not go on, with an error in the form
    of all others."""

    def __init__(self, *args: Any, **options: Any):
        """See `HttpToolsProtocol`."""
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None  # while a request is not complete
        self._place: Literal["start", "headers", "body"] = "start"
        self._head = 0  # bytes of the headers that have come
        self._body_end = 0.0  # when the body must be there

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        self._received()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Goes on with an answer, unless the client turns out to have gone."""
        if not self._answering:
            return False
        assert self.cycle is not None
        self.cycle.keep_alive = False
        self.loop.call_later(_TRIED, self._try)
        return True

    def _try(self) -> None:
        """Sends what says nothing: to a client that has gone, that is an error the next time."""
        cycle = self.cycle
        if cycle is None or not self._answering or self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if cycle.response_started:
            if cycle.chunked_encoding:  # a stream of events
                self.transport.write(b"3\r\n:\n\n\r\n")
        elif cycle.scope["http_version"] != "1.0":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(_TRIED, self._try)

    def data_received(self, data: bytes) -> None:
        """Reads on; refuses headers without an end."""
        began = self._place
        if began != "body":
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
        super().data_received(data)
        self._head = self._head + len(data) if began == self._place == "headers" else 0
        if self._head > _MOST_HEAD:
            self._refuse(431, f"the headers are larger than {_MOST_HEAD:,} bytes")

    def on_message_begin(self) -> None:
        """Waits for the headers, which have a time for all of them."""
        self._place = "headers"
        if self._timer is None:
            self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Waits for the body."""
        self._place = "body"
        self._body_end = self.loop.time() + _MOST_BODY
        self._wait()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Waits for more of it."""
        self._wait()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Has the whole request."""
        self._place = "start"
        self._received()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no request."""
        self._refuse(400, "this is no request of HTTP/1.1 or 1.0")

    def _wait(self) -> None:
        self._received()
        seconds = _PATIENCE
        if self._place == "body":
            seconds = min(seconds, self._body_end - self.loop.time())
        self._timer = self.loop.call_later(seconds, self._late)

    def _received(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self.flow.read_paused or self._answering:
            # The client waits for the answer to an earlier request.
            self._timer = self.loop.call_later(_PATIENCE, self._late)
            return
        if self._place == "start":
            self.transport.close()
            return
        part, seconds = "headers", _PATIENCE
        if self._place == "body":
            part = "rest of the body"
            if self.loop.time() >= self._body_end:
                part, seconds = "body", _MOST_BODY
        self._refuse(408, f"the {part} did not come within {seconds:g} seconds")

    @property
    def _answering(self) -> bool:
        """True while a whole request is being answered."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _refuse(self, status: int, message: str) -> None:
        """Closes the connection; says why, unless that would be taken for another answer."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        if not (begun or self._answering):
            response = ApiError(status, message, headers=CLOSE).response
            lines = [b"%s: %s\r\n" % header for header in response.raw_headers]
            parts = [STATUS_LINE[status], *lines, b"\r\n", bytes(response.body)]
            self.transport.write(b"".join(parts))
        self.transport.close()


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
