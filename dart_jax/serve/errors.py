"""Errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dart_jax.errors import UserError

_logger = logging.getLogger(__name__)


class ApiError(Exception):
    """A request that is not answered.

    Attributes:
      status: of the HTTP response.
      message: one line, for the client.
      param: the field at fault, if there is one.
      code: what went wrong, for programs.
      headers: of the HTTP response.
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
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code = param, code
        self.headers = dict(headers or {})

    @property
    def content(self) -> dict[str, Any]:
        """What is sent, in a response or as an event of a stream."""
        kind = _TYPES.get(self.status)
        if kind is None:
            kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def response(self) -> Response:
        """The error as a response."""
        return json_response(self.content, self.status, self.headers)


_TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}
_TYPES[504] = _TYPES[408]


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that can never be answered."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str = "the server is shutting down; try again later") -> ApiError:
    """Nothing is answered any more."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": "5"})


def busy(message: str, seconds: float) -> ApiError:
    """No room for a request: try again after so many seconds."""
    after = str(max(math.ceil(seconds), 1))
    return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": after})


def timed_out(seconds: float) -> ApiError:
    """An answer that takes longer than the server allows."""
    return ApiError(504, f"the answer was not complete after {seconds:g} s", code="timeout")


def internal() -> ApiError:
    """A fault of ours; the log has the rest."""
    return ApiError(500, "the server failed to answer; its log says why", code="internal_error")


def to_json(content: Any) -> bytes:
    """JSON in UTF-8; half surrogates, which UTF-8 does not have, become question marks."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response with JSON."""
    made = dict(headers or {})
    return Response(to_json(content), status, made, media_type="application/json")


_Routes = TypeVar("_Routes")
_Endpoint = Callable[[_Routes, Request], Awaitable[Response]]


def answering(endpoint: _Endpoint[_Routes]) -> _Endpoint[_Routes]:
    """Makes responses of the errors of an endpoint, which is a method."""

    @functools.wraps(endpoint)
    async def answer(self: _Routes, request: Request) -> Response:
        try:
            return await endpoint(self, request)
        except ApiError as error:
            return error.response
        except UserError as error:
            return bad(str(error)).response
        except ClientDisconnect:
            return Response()  # nobody receives it
        except Exception:
            _logger.exception("%s failed", request.url.path)
            return internal().response

    return answer
