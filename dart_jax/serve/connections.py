"""Connections: those that send nothing are closed, and those that come too early are answered."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dart_jax.serve.errors import CLOSE, unavailable

# Seconds in which a request's headers must come, and between two parts of its body.
_PATIENCE = 20.0

# Seconds in which a client that comes too early should have sent its request.
_HURRY = 0.5


class Connection(HttpToolsProtocol):
    """A connection that ends where a request begins and does not go on."""

    _late: asyncio.TimerHandle | None = None
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Waits for the first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        self._received()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Waits anew, for a body; headers have a time for all of them."""
        if self._in_body:
            self._wait()
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Waits for the headers."""
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Waits for the body."""
        self._in_body = True
        self._wait()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Has the whole request."""
        self._in_body = False
        self._received()
        super().on_message_complete()

    def _wait(self) -> None:
        self._received()
        self._late = self.loop.call_later(_PATIENCE, self.transport.close)

    def _received(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


@contextlib.contextmanager
def starting(listening: socket.socket) -> Iterator[None]:
    """Listens, and answers everybody with status 503, on a thread, until the server is there."""
    listening.listen(128)
    error = unavailable("the server is starting; try again later")
    response, lines = error.response, ["HTTP/1.1 503 Service Unavailable"]
    lines += [f"{name.decode()}: {value.decode()}" for name, value in response.raw_headers]
    lines += [f"{name}: {value}" for name, value in CLOSE.items()]
    answer = "\r\n".join([*lines, "", ""]).encode() + bytes(response.body)
    done = threading.Event()
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)

        def serve() -> None:
            while not done.is_set():
                if selector.select(timeout=0.05):
                    with contextlib.suppress(OSError):
                        _answer(listening.accept()[0], answer)

        thread = threading.Thread(target=serve, name="starting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _answer(connection: socket.socket, answer: bytes) -> None:
    with connection:
        connection.settimeout(_HURRY)
        connection.recv(1 << 16)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):  # what is not read would reset the connection
            pass
