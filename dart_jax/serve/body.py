"""The body of a request: read within limits, and parsed as a JSON object."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request

from dart_jax.serve.errors import ApiError, bad


async def read_json(request: Request, most: int, seconds: float | None) -> dict[str, Any]:
    """Returns the object in a request's body, without the fields that are null.

    Args:
      request: nothing of it has been read.
      most: bytes that are read.
      seconds: how long the client may take; None for any time.

    Raises:
      ApiError: it is too large or too slow, or not a JSON object in UTF-8.
      ClientDisconnect: the client has gone.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, most)
    except TimeoutError:
        raise ApiError(
            408, f"the body was not complete after {seconds:g} s", headers=CLOSE
        ) from None
    return parse(body)


# What remains of the body is not read, so nothing can follow on this connection.
CLOSE = {"Connection": "close"}


async def _read(request: Request, most: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def _too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {most:,} bytes, the most that this server reads",
        code="request_too_large",
        headers=CLOSE,
    )


def parse(body: bytes) -> dict[str, Any]:
    """Parses a body; raises ApiError as `read_json`."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise bad(f"the body is not UTF-8 text (byte {error.start + 1})") from None
    try:
        content = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise bad(f"the body is not JSON: {error.msg} ({where})") from None
    except RecursionError:
        raise bad("the body is not accepted: it is nested too deeply") from None
    except ValueError as error:  # a number that is none, or with thousands of digits
        raise bad(f"the body is not JSON: {str(error).split(';')[0]}") from None
    if not isinstance(content, dict):
        raise bad("the body must be a JSON object")
    return {name: value for name, value in content.items() if value is not None}


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")
