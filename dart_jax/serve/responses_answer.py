"""Responses: items of text and calls, whole or as a stream of events."""

from __future__ import annotations

import copy
import uuid
from typing import Any

from dart_jax.engine.request import Finish
from dart_jax.serve.answer import ChatAnswer
from dart_jax.serve.body.errors import ApiError, to_json
from dart_jax.serve.body.fields import ChatFields, ResponseFields
from dart_jax.serve.service import Service
from dart_jax.serve.texts import News, Texts
from dart_jax.serve.tools.reader import CallPiece
from dart_jax.serve.tools.request import Tools
from dart_jax.text.thoughts import Thinking

# Name and fields of an event.
_Event = tuple[str, dict[str, Any]]


class ResponseAnswer(ChatAnswer):
    """The answer of /v1/responses."""

    kind = chunk_kind = "response"
    prefix = "resp_"

    def __init__(
        self,
        service: Service,
        asked: ResponseFields,
        fields: ChatFields,
        texts: Texts,
        tools: Tools | None,
        thinking: Thinking | None,
    ):
        """See `ChatAnswer`; `asked`: the client's fields, of which `fields` were made."""
        super().__init__(service, fields, texts, tools, thinking)
        self._asked = asked
        self._scored_tokens = 0
        self._finish: Finish | None = None
        self._output, self._number = _Output(), 0

    def _response(self, status: str, finish: Finish | None = None) -> dict[str, Any]:
        """Writes the response as far as it is."""
        asked, cut = self._asked, finish == "length"
        given = asked.model_dump(
            include={
                "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "text",
                "tool_choice", "tools", "top_logprobs", "truncation",
            }
        )  # fmt: skip
        sampling = self._texts.texts[0].request.sampling
        usage = self._usage
        return {
            "id": self._head["id"],
            "object": "response",
            "created_at": self._head["created"],
            "model": self._head["model"],
            "status": "incomplete" if cut else status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "output": self._output.items,
            **given,
            "text": {"format": {"type": "text"}, **asked.text},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.effort, "summary": asked.reasoning.summary},
            "store": False,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._thought_tokens},
                "total_tokens": usage["total_tokens"],
            }
            if finish is not None
            else None,
        }

    def _take(self, index: int, news: News) -> list[_Event]:
        """Adds news to the output; returns what happened to it."""
        (thoughts, parts), scores = self._read(index, news), self._scores(news)
        if scores is not None:
            logprobs = scores["content"]
            # Thoughts have none.
            self._output.logprobs += logprobs[max(self._thought_tokens - self._scored_tokens, 0) :]
            self._scored_tokens += len(logprobs)
        events = self._output.add_text("reasoning", thoughts)
        for part in parts:
            if isinstance(part, str):
                events += self._output.add_text("message", part)
            else:
                events += self._output.add_call(part)
        if news.finish is not None:
            self._finish = news.finish
            events += self._output.end("incomplete" if news.finish == "length" else "completed")
        return events

    def _all(self) -> dict[str, Any]:
        for index, news in self._news():
            self._take(index, news)
        return self._response("completed", self._finish)

    def _written(self, events: list[_Event]) -> bytes:
        written = b""
        for name, fields in events:
            content = {"type": name, "sequence_number": self._number, **fields}
            written += b"event: " + name.encode() + b"\ndata: " + to_json(content) + b"\n\n"
            self._number += 1
        return written

    def _first_events(self) -> bytes:
        response = {"response": self._response("in_progress")}
        return self._written(
            [(f"response.{name}", response) for name in ("created", "in_progress")]
        )

    def _events(self, index: int, news: News) -> bytes:
        return self._written(self._take(index, news))

    def _last_events(self) -> bytes:
        response = self._response("completed", self._finish)
        return self._written([(f"response.{response['status']}", {"response": response})])

    def _error_events(self, error: ApiError) -> bytes:
        message, code = (error.content["error"][name] for name in ("message", "code"))
        response = self._response("failed")
        response["error"] = {"code": code or "server_error", "message": message}
        return self._written([("response.failed", {"response": response})])


class _Output:
    """The items of a response, the last of which may be open.

    Attributes:
      items: messages and calls.
      logprobs: of tokens whose text is still to come.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.logprobs: list[Any] = []
        self._open = False

    def add_text(self, kind: str, text: str) -> list[_Event]:
        """Adds text to the item that is open, or to a new one if that is of another kind; `kind`:
        message or reasoning."""
        if not text:
            return []
        events: list[_Event] = []
        if not (self._open and self.items[-1]["type"] == kind):
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                events = self._begin(kind, "msg_", role="assistant", content=[])
            else:
                part = {"type": "reasoning_text", "text": ""}
                events = self._begin(kind, "rs_", summary=[], content=[])
            self.items[-1]["content"].append(part)
            events.append(("response.content_part.added", self._place() | {"part": dict(part)}))
        return [*events, self._delta(text)]

    def _delta(self, text: str) -> _Event:
        [part] = self.items[-1]["content"]
        part["text"] += text
        place = self._place() | {"delta": text}
        if "logprobs" in part:
            part["logprobs"] += self.logprobs
            place["logprobs"], self.logprobs = self.logprobs, []
        return f"response.{part['type']}.delta", place

    def add_call(self, piece: CallPiece) -> list[_Event]:
        """Adds a piece of a call to the one that is open, or begins it."""
        events: list[_Event] = []
        if piece.id is not None:
            parts = {"call_id": piece.id, "name": piece.name, "arguments": ""}
            events = self._begin("function_call", "fc_", **parts)
        self.items[-1]["arguments"] += piece.arguments
        place = self._place() | {"delta": piece.arguments}
        return [*events, ("response.function_call_arguments.delta", place)]

    def end(self, status: str = "completed") -> list[_Event]:
        """Closes the item that is open."""
        if not self._open:
            return []
        item, place, events = self.items[-1], self._place(), list[_Event]()
        self._open, item["status"] = False, status
        if "content" in item:
            [part] = item["content"]
            if self.logprobs and "logprobs" in part:  # of tokens that have no text
                events.append(self._delta(""))
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            events += [
                (f"response.{part['type']}.done", place | done),
                ("response.content_part.done", place | {"part": part}),
            ]
        else:
            done = {name: item[name] for name in ("name", "arguments")}
            events.append(("response.function_call_arguments.done", place | done))
        index = {"output_index": len(self.items) - 1}
        return [*events, ("response.output_item.done", index | {"item": item})]

    def _begin(self, kind: str, prefix: str, **parts: Any) -> list[_Event]:
        events = self.end()
        item = {"id": f"{prefix}{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **parts}
        self.items.append(item)
        self._open = True
        index = {"output_index": len(self.items) - 1}
        # A copy: the item changes before this is written.
        added = index | {"item": copy.deepcopy(item)}
        return [*events, ("response.output_item.added", added)]

    def _place(self) -> dict[str, Any]:
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return place | {"content_index": 0} if "content" in item else place
