"""HTTP/1.1 over asyncio streams: one request on a connection, its body as it arrives.

General clients take two to three times the processor time for a chunk (99 us with httpx2, 38 us
here), which would be missing for a server on the same machine; and none lets a reader be slow, or
sends what is malformed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlsplit

from dart_jax.errors import UserError

# Bytes that asyncio reads ahead, and that the system keeps, for a reader that is slow on purpose.
_SLOW = 2048


class BrokenResponse(ConnectionError):
    """The server ended its response too early, or it is not HTTP."""


class Address(NamedTuple):
    """Where a server listens, and the key that it asks for, if any."""

    host: str
    port: int
    tls: bool = False
    path: str = ""
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Reads a URL such as http://127.0.0.1:8000, with or without its /v1.

        Raises:
          UserError: it is none.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"a server is written like http://127.0.0.1:8000, got {url!r}")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise UserError(f"{url!r} has no valid port") from None
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port, parts.scheme == "https", path)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.tls}://{host}:{self.port}{self.path}"


class Connection:
    """An open connection for one request.

    Attributes:
      status: of the response; 0 before it has begun.
      headers: of the response, with names in lower case.
    """

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self.status = 0
        self.headers: dict[str, str] = {}
        self._address, self._reader, self._writer = address, reader, writer

    async def send(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> None:
        """Sends a request and waits until the response begins.

        Raises:
          OSError: the connection is broken; `BrokenResponse` if what comes is not HTTP.
        """
        place = self._address
        head = (
            f"{method} {place.path}{path} HTTP/1.1\r\n"
            f"Host: {place.host}:{place.port}\r\nConnection: close\r\nAccept: */*\r\n"
        )
        if place.key:
            head += f"Authorization: Bearer {place.key}\r\n"
        if body:
            head += f"Content-Type: {kind}\r\n"
        if body or method == "POST":
            head += f"Content-Length: {len(body)}\r\n"
        self._writer.write(head.encode("latin-1") + b"\r\n" + body)
        await self._writer.drain()
        status = await self._line()
        parts = status.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise BrokenResponse(f"not a response of HTTP/1.1: {status[:60]!r}")
        while line := await self._line():
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status = int(parts[1])

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, in the pieces in which the server sent it.

        Raises:
          OSError: as `send`.
        """
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := await self._size():
                yield await self._exactly(size)
                await self._exactly(2)
            while await self._line():  # trailers
                pass
        elif (length := self.headers.get("content-length")) is not None:
            if not length.isdigit():
                raise BrokenResponse(f"Content-Length {length!r} is no number")
            if int(length):
                yield await self._exactly(int(length))
        else:
            while data := await self._reader.read(2**16):
                yield data

    async def body(self) -> bytes:
        """The whole body; raises as `chunks`."""
        return b"".join([data async for data in self.chunks()])

    async def _size(self) -> int:
        line = await self._line()
        try:
            return int(line.partition(";")[0], 16)
        except ValueError:
            raise BrokenResponse(f"a chunk begins with {line[:20]!r}, not its size") from None

    async def _line(self) -> str:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise BrokenResponse("the server closed the connection before its response ended")
        return line.decode("latin-1").rstrip("\r\n")

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise BrokenResponse("the server closed the connection within its response") from None

    async def close(self) -> None:
        """Ends the connection at once, whatever the server is doing."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def connection(address: Address, slow: bool = False) -> AsyncIterator[Connection]:
    """Opens a connection, and ends it with the block.

    Args:
      address: the server's.
      slow: keep little of what arrives, so that the server notices a reader that waits.

    Raises:
      OSError: nobody listens there.
    """
    limit, place = 2**16, {"host": address.host, "port": address.port}
    made = None
    if slow:
        limit, made = _SLOW, socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW)
        made.setblocking(False)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(made, (address.host, address.port))
        except BaseException:
            made.close()
            raise
        place = {"sock": made}
    tls = {"ssl": True, "server_hostname": address.host} if address.tls else {}
    reader, writer = await asyncio.open_connection(**place, **tls, limit=limit)
    opened = Connection(address, reader, writer)
    try:
        yield opened
    finally:
        await opened.close()


async def fetch(address: Address, path: str, seconds: float = 30.0) -> tuple[int, bytes]:
    """Gets a page.

    Returns:
      Its status and content.

    Raises:
      OSError: it cannot be had in that time.
    """
    async with asyncio.timeout(seconds), connection(address) as opened:
        await opened.send("GET", path)
        return opened.status, await opened.body()
