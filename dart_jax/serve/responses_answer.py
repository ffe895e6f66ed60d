"""Responses: items of text and calls, whole or as a stream of events."""

from __future__ import annotations

import uuid
from typing import Any

from dart_jax.engine.request import Finish
from dart_jax.serve.answer import ChatAnswer, event
from dart_jax.serve.body.errors import ApiError
from dart_jax.serve.body.fields import ChatFields, ResponseFields
from dart_jax.serve.service import Service
from dart_jax.serve.texts import News, Texts
from dart_jax.serve.tools.reader import CallPiece
from dart_jax.serve.tools.request import Tools
from dart_jax.text.thoughts import Thinking


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
        self._output = _Output()

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

    def _take(self, index: int, news: News) -> None:
        """Adds news to the output."""
        (thoughts, parts), scores, output = (
            self._read(index, news),
            self._scores(news),
            self._output,
        )
        if scores is not None:
            logprobs = scores["content"]
            # Thoughts have none.
            output.logprobs += logprobs[max(self._thought_tokens - self._scored_tokens, 0) :]
            self._scored_tokens += len(logprobs)
        output.add_text("reasoning", thoughts)
        for part in parts:
            if isinstance(part, str):
                output.add_text("message", part)
            else:
                output.add_call(part)
        if news.finish is not None:
            self._finish = news.finish
            output.end("incomplete" if news.finish == "length" else "completed")

    def _all(self) -> dict[str, Any]:
        for index, news in self._news():
            self._take(index, news)
        return self._response("completed", self._finish)

    def _first_events(self) -> bytes:
        for name in ("created", "in_progress"):
            self._output.tell(name, response=self._response("in_progress"))
        return self._output.take()

    def _events(self, index: int, news: News) -> bytes:
        self._take(index, news)
        return self._output.take()

    def _last_events(self) -> bytes:
        response = self._response("completed", self._finish)
        self._output.tell(response["status"], response=response)
        return self._output.take()

    def _error_events(self, error: ApiError) -> bytes:
        message, code = (error.content["error"][name] for name in ("message", "code"))
        failed = {"error": {"code": code or "server_error", "message": message}}
        self._output.tell("failed", response=self._response("failed") | failed)
        return self._output.take()


class _Output:
    """Items of a response, the last of which may be open, and events that tell of them.

    Attributes:
      items: messages, thoughts and calls.
      logprobs: of tokens whose text is still to come.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.logprobs: list[Any] = []
        self._open = False
        self._events, self._number = b"", 0

    def tell(self, name: str, /, **fields: Any) -> None:
        """Writes an event."""
        content = {"type": f"response.{name}", "sequence_number": self._number, **fields}
        self._events += f"event: response.{name}\n".encode() + event(content)
        self._number += 1

    def take(self) -> bytes:
        """Returns the events since the last call."""
        events, self._events = self._events, b""
        return events

    def add_text(self, kind: str, text: str) -> None:
        """Adds text to the item that is open, or to a new one if that is of another kind; `kind`:
        message or reasoning."""
        if not text:
            return
        if not (self._open and self.items[-1]["type"] == kind):
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                self._begin(kind, "msg_", role="assistant", content=[])
            else:
                part = {"type": "reasoning_text", "text": ""}
                self._begin(kind, "rs_", summary=[], content=[])
            self.items[-1]["content"].append(part)
            self.tell("content_part.added", **self._place(), part=part)
        self._add(text)

    def _add(self, text: str) -> None:
        [part] = self.items[-1]["content"]
        part["text"] += text
        scores: dict[str, Any] = {}
        if "logprobs" in part:
            part["logprobs"] += self.logprobs
            scores["logprobs"], self.logprobs = self.logprobs, []
        self.tell(f"{part['type']}.delta", **self._place(), delta=text, **scores)

    def add_call(self, piece: CallPiece) -> None:
        """Adds a piece of a call to the one that is open, or begins it."""
        if piece.id is not None:
            parts = {"call_id": piece.id, "name": piece.name, "arguments": ""}
            self._begin("function_call", "fc_", **parts)
        self.items[-1]["arguments"] += piece.arguments
        self.tell("function_call_arguments.delta", **self._place(), delta=piece.arguments)

    def end(self, status: str = "completed") -> None:
        """Closes the item that is open."""
        if not self._open:
            return
        item, place = self.items[-1], self._place()
        self._open, item["status"] = False, status
        if "content" in item:
            [part] = item["content"]
            if self.logprobs and "logprobs" in part:  # of tokens that have no text
                self._add("")
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            self.tell(f"{part['type']}.done", **place, **done)
            self.tell("content_part.done", **place, part=part)
        else:
            done = {name: item[name] for name in ("name", "arguments")}
            self.tell("function_call_arguments.done", **place, **done)
        self.tell("output_item.done", output_index=place["output_index"], item=item)

    def _begin(self, kind: str, prefix: str, **parts: Any) -> None:
        self.end()
        item = {"id": f"{prefix}{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **parts}
        self.items.append(item)
        self._open = True
        self.tell("output_item.added", output_index=len(self.items) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return place | {"content_index": 0} if "content" in item else place
