"""Sends an answer: whole or in pieces, until it is complete, too late, or nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dart_jax.serve.errors import ApiError, internal, json_response, timed_out, to_json
from dart_jax.serve.fields import GenerationFields
from dart_jax.serve.forms import Form
from dart_jax.serve.service import Service
from dart_jax.serve.texts import Piece, Texts

_logger = logging.getLogger(__name__)

_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that keep back parts of an answer
]
_DONE = b"data: [DONE]\n\n"

# Seconds in which a client that reads too slowly may still take the error.
_LAST_CHANCE = 1.0


class Answer(Response):
    """The answer to a request for texts. It ends them if the client goes away."""

    def __init__(
        self,
        service: Service,
        form: Form,
        fields: GenerationFields,
        texts: Texts,
        prompt_tokens: int,
        ends: float | None,
        begun: Sequence[Piece] = (),
    ):
        """Nothing is sent yet.

        Args:
          service: generates `texts`, and is told when they are not needed any more.
          form: of the endpoint.
          fields: what the client asked for.
          texts: what is sent.
          prompt_tokens: of all prompts.
          ends: when it must be complete, in seconds of the loop's clock; None for any time.
          begun: what stands already, one for each text, if anything does.
        """
        super().__init__()
        self._service, self._form, self._texts = service, form, texts
        self._stream, self._options = fields.stream, fields.stream_options
        self._prompt_tokens, self._ends = prompt_tokens, ends
        self._begun = list(begun) or [Piece() for _ in texts.texts]
        self._head = {
            "id": f"{form.prefix}{uuid.uuid4().hex}",
            "object": form.chunk_kind if fields.stream else form.kind,
            "created": int(time.time()),
            "model": service.names[0],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            if self._stream:
                await _unless_gone(receive, self._send_events(send))
            else:
                await _unless_gone(receive, self._send_whole(scope, receive, send))
        finally:
            self._service.forget(self._texts)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = json_response(await self._whole())
        except Exception as error:
            response = self._failure(error).response
        await response(scope, receive, send)

    async def _whole(self) -> dict[str, Any]:
        pieces = list(self._begun)
        async with asyncio.timeout_at(self._ends):
            while self._texts.running:
                for index, piece in await self._texts.more():
                    pieces[index] = pieces[index].followed_by(piece)
        choices = [self._form.whole(index, piece) for index, piece in enumerate(pieces)]
        return self._head | {"choices": choices, "usage": self._usage}

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        try:
            async with asyncio.timeout_at(self._ends):
                new = list(enumerate(self._begun))
                while True:
                    events = b"".join(self._event(index, piece) for index, piece in new)
                    if events:
                        await send(_body(events, more=True))
                    if not self._texts.running:
                        break
                    new = await self._texts.more()
                last = b""
                if self._options.include_usage:
                    last = _event(self._head | {"choices": [], "usage": self._usage})
                await send(_body(last + _DONE))
        except Exception as error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CHANCE):
                    await send(_body(_event(self._failure(error).content) + _DONE))

    def _event(self, index: int, piece: Piece) -> bytes:
        """A piece as an event; nothing if there is nothing to tell."""
        if not (piece.text or piece.scores or piece.finish):
            return b""
        chunk = self._head | {"choices": [self._form.chunk(index, piece)]}
        if self._options.continuous_usage_stats:
            chunk["usage"] = self._usage
        elif self._options.include_usage:
            chunk["usage"] = None
        return _event(chunk)

    @property
    def _usage(self) -> dict[str, int]:
        new = sum(text.tokens for text in self._texts.texts)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self._prompt_tokens + new,
        }

    def _failure(self, error: Exception) -> ApiError:
        """What the client is told of an error."""
        if isinstance(error, ApiError):
            if error.status == 500:
                _logger.error("an answer failed: %s", error.__cause__)
            return error
        if isinstance(error, TimeoutError) and self._service.limits.timeout is not None:
            return timed_out(self._service.limits.timeout)
        _logger.error("an answer failed", exc_info=error)
        return internal()


def _event(content: Any) -> bytes:
    return b"data: " + to_json(content) + b"\n\n"


def _body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def _unless_gone(receive: Receive, sending: Coroutine[Any, Any, None]) -> None:
    """Runs `sending` until it is done or the client has gone."""
    work = asyncio.ensure_future(sending)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
