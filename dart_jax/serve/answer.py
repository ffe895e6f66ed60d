"""Sends an answer: whole or in pieces, until it is complete or nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dart_jax.serve.body.errors import ApiError, internal, json_response, to_json, unavailable
from dart_jax.serve.body.fields import ChatFields, GenerationFields
from dart_jax.serve.logprobs import chat_scores, completion_scores, id_of, prompt_scores
from dart_jax.serve.service import Service
from dart_jax.serve.texts import News, Texts
from dart_jax.serve.tools.reader import CallPiece, Part, divided
from dart_jax.serve.tools.request import Tools
from dart_jax.text.thoughts import Thinking

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# The logger of answers and reports.
LOGGER = "dart_jax.serve.log"

_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that keep back parts of an answer
]
_DONE = b"data: [DONE]\n\n"

# Seconds in which a client that reads too slowly may still take an error.
_LAST_CHANCE = 1.0


class Answer(Response):
    """The answer to a request for texts. It ends them if the client goes away.

    Attributes:
      kind: name of the objects that are sent.
      chunk_kind: name of the pieces of a stream.
      prefix: beginning of their ids.
    """

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(self, service: Service, fields: GenerationFields, texts: Texts):
        """Prepares the answer; `fields` are the client's, `texts` those that `service` generates
        for them."""
        super().__init__()
        self._service, self._fields, self._texts = service, fields, texts
        self._prompts = texts.texts[:: fields.n]  # a text of each
        self._head = {
            "id": f"{self.prefix}{uuid.uuid4().hex}",
            "object": self.chunk_kind if fields.stream else self.kind,
            "created": int(time.time()),
            "model": service.names[0],
        }

    def _choice(self, index: int, news: News) -> dict[str, Any]:
        """Writes the news of the `index`th text: all of it, unless it is streamed."""
        raise NotImplementedError

    def _prompt_scores(self, index: int) -> dict[str, Any]:
        """Writes the scores of the `index`th text's prompt, if they were asked for."""
        most, scores = self._fields.prompt_logprobs, self._texts.texts[index].prompt_scores
        if most is None:
            return {}
        return {"prompt_logprobs": prompt_scores(scores, most, self._service.token_texts)}

    def _all(self) -> dict[str, Any]:
        """Writes the whole answer."""
        choices = [self._choice(index, news) for index, news in self._news()]
        return self._head | {"choices": choices, "usage": self._usage}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            stream = self._fields.stream
            sending = self._send_events(send) if stream else self._whole(scope, receive, send)
            with contextlib.suppress(ClientDisconnect):
                await unless_gone(receive, sending)
        finally:
            self._texts.close()
            finishes = ", ".join(text.finish or "cancelled" for text in self._texts.texts)
            logging.getLogger(LOGGER).info(
                "%s: %d tokens (cached: %d) + %d, %.80s, %.0f ms",
                self._head["id"],
                self._prompt_tokens,
                self._cached_tokens,
                self._texts.tokens,
                finishes,
                1e3 * (time.monotonic() - self._texts.arrived),
            )

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while self._texts.running:
                await self._texts.more()
            response = json_response(self._all())
        except (Exception, asyncio.CancelledError) as error:
            response = self._failure(error).response
        await response(scope, receive, send)

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        try:
            if first := self._first_events():
                await send(_body(first, more=True))
            while True:
                events = b"".join(self._events(index, news) for index, news in self._news())
                if events:
                    await send(_body(events, more=True))
                if not self._texts.running:
                    break
                await self._texts.more()
            await send(_body(self._last_events()))
        except (Exception, asyncio.CancelledError) as error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CHANCE):
                    await send(_body(self._error_events(self._failure(error))))

    def _news(self) -> list[tuple[int, News]]:
        every = enumerate(text.take() for text in self._texts.texts)
        return [(index, news) for index, news in every if news is not None]

    def _first_events(self) -> bytes:
        """Writes what comes before all news."""
        return b""

    def _events(self, index: int, news: News) -> bytes:
        """Writes the news of the `index`th text."""
        chunk = self._head | {"choices": [self._choice(index, news)]}
        if self._fields.stream_options.continuous_usage_stats:
            chunk["usage"] = self._usage
        elif self._fields.stream_options.include_usage:
            chunk["usage"] = None
        return event(chunk)

    def _last_events(self) -> bytes:
        """Writes what comes after all news."""
        last = b""
        if self._fields.stream_options.include_usage:
            last = event(self._head | {"choices": [], "usage": self._usage})
        return last + _DONE

    def _error_events(self, error: ApiError) -> bytes:
        """Writes what comes where something failed."""
        return event(error.content) + _DONE

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(text.request.tokens) for text in self._prompts)

    @property
    def _cached_tokens(self) -> int:
        return sum(text.cached_tokens for text in self._prompts)

    @property
    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._texts.tokens,
            "total_tokens": self._prompt_tokens + self._texts.tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    def _failure(self, error: BaseException) -> ApiError:
        """Returns the error for the client; logs the rest of a fault."""
        if isinstance(error, asyncio.CancelledError):
            return unavailable("the server was stopped before the answer was complete")
        if isinstance(error, ApiError):
            if error.status == 500:
                _logger.error("an answer failed: %s", error.__cause__)
            return error
        _logger.error("an answer failed", exc_info=error)
        return internal()


class CompletionAnswer(Answer):
    """The answer of /v1/completions."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl-"

    def _choice(self, index: int, news: News) -> dict[str, Any]:
        by_id = self._fields.return_tokens_as_token_ids
        name = id_of if by_id else self._service.token_texts.text_of
        scores = None if self._fields.top is None else completion_scores(news.scores, name)
        return {
            "index": index,
            "text": news.text,
            "logprobs": scores,
            "finish_reason": news.finish,
            **self._prompt_scores(index),
        }


class ChatAnswer(Answer):
    """The answer of /v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl-"

    def __init__(
        self,
        service: Service,
        fields: ChatFields,
        texts: Texts,
        tools: Tools | None = None,
        thinking: Thinking | None = None,
    ):
        """See `Answer`; `tools`: that the texts may call; `thinking`: how they think."""
        super().__init__(service, fields, texts)
        self._shows_thoughts, self._apart = fields.shows_thoughts, fields.separates_thoughts
        self._readers = None if tools is None else [tools.reader() for _ in texts.texts]
        self._thinking = thinking
        # Every space counts where a grammar says what follows.
        self._exact = exact = texts.texts[0].request.grammar is not None
        self._thoughts = thinking and [
            thinking.reader(exact=exact, raw=not self._apart) for _ in texts.texts
        ]

    def _all(self) -> dict[str, Any]:
        return super()._all() | self._prompt_scores(0)

    def _read(self, index: int, news: News) -> tuple[str, list[Part]]:
        """Finds thoughts, and calls after them, in the news of the `index`th text."""
        thoughts, text, final = "", news.text, news.finish is not None
        if self._thoughts is not None:
            thoughts, text = self._thoughts[index].push(text, final=final)
        parts: list[Part] = [text]
        if self._readers is not None:
            parts = self._readers[index].push(text, final=final)
        if not self._apart:
            return "", [thoughts, *parts]
        return thoughts if self._shows_thoughts else "", parts

    @property
    def _thought_tokens(self) -> int:
        if self._thinking is None:
            return 0
        return sum(self._thinking.count(text.token_ids) for text in self._texts.texts)

    @property
    def _usage(self) -> dict[str, Any]:
        details = {"completion_tokens_details": {"reasoning_tokens": self._thought_tokens}}
        return super()._usage | ({} if self._thinking is None else details)

    def _scores(self, news: News) -> dict[str, Any] | None:
        if self._fields.top is None:
            return None
        texts, by_id = self._service.token_texts, self._fields.return_tokens_as_token_ids
        return chat_scores(news.scores, texts, first=news.first and not self._exact, by_id=by_id)

    def _choice(self, index: int, news: News) -> dict[str, Any]:
        (thoughts, parts), finish = self._read(index, news), news.finish
        content, pieces = divided(parts)
        if finish == "stop" and self._readers is not None and self._readers[index].complete:
            finish = "tool_calls"
        rest = {"logprobs": self._scores(news), "finish_reason": finish}
        calls = [self._call(piece) for piece in pieces]
        if not self._fields.stream:
            message = {"role": "assistant", "content": content, "refusal": None}
            if self._thinking is not None and self._apart:
                message["reasoning_content"] = thoughts or None
            if calls:
                message |= {"content": content or None, "tool_calls": calls}
            return {"index": index, "message": message, **rest}
        # The role comes with the first piece, not before: clients measure the time to the first
        # token by it.
        delta: dict[str, Any] = {"role": "assistant"} if news.first else {}
        # An answer of calls alone has no content: some clients show even an empty one.
        if content or (news.first and self._readers is None and not thoughts):
            delta["content"] = content
        if thoughts:
            delta["reasoning_content"] = thoughts
        if calls:
            delta["tool_calls"] = calls
        return {"index": index, "delta": delta, **rest}

    def _call(self, piece: CallPiece) -> dict[str, Any]:
        """Writes a piece of a call; the first one, and a whole call, has all fields."""
        call: dict[str, Any] = {"index": piece.index} if self._fields.stream else {}
        function = {"arguments": piece.arguments}
        if piece.id is not None:
            call |= {"id": piece.id, "type": "function"}
            function = {"name": piece.name, **function}
        return call | {"function": function}


def event(content: Any) -> bytes:
    """Writes an event of a stream."""
    return b"data: " + to_json(content) + b"\n\n"


def _body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def unless_gone(receive: Receive, working: Coroutine[Any, Any, _Result]) -> _Result:
    """Works until that is done. If the client goes, whose whole body has been received, cancels the
    work and raises ClientDisconnect."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    work, gone = asyncio.ensure_future(working), asyncio.ensure_future(until_gone())
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
