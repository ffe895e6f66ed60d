"""Errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

# With what remains of a body unread, nothing can follow on its connection.
CLOSE = {"Connection": "close"}

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that is not answered.

    Attributes:
      status: of the HTTP response.
      content: the JSON, in a response or as an event of a stream.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        """Describes the error in one line for the client, with the field at fault, if there is one,
        and the kind of error for programs; `headers` are the HTTP response's."""
        super().__init__(message)
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.status, self._headers = status, dict(headers or {})
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    @property
    def response(self) -> Response:
        """The error as a response."""
        return json_response(self.content, self.status, self._headers)


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Makes the error of a request that can never be answered."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str) -> ApiError:
    """Makes the error of a server that answers nothing now."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": "5"})


def busy(message: str, seconds: float) -> ApiError:
    """Makes the error of a full queue: try again after `seconds`."""
    after = str(max(math.ceil(seconds), 1))
    return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": after})


def internal() -> ApiError:
    """Makes the error of a fault of ours; the log has the rest."""
    return ApiError(500, "the server failed to answer; its log says why", code="internal_error")


def to_json(content: Any) -> bytes:
    """Writes JSON in UTF-8; half surrogates, which UTF-8 does not have, become question marks."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Makes a response with JSON."""
    return Response(to_json(content), status, dict(headers or {}), media_type="application/json")
