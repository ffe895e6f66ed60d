"""A client of servers with OpenAI's API, which takes the time of tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dart_jax.errors import UserError

# A request's fields by the API's names, without the model's.
Body = dict[str, Any]

# Seconds that a server may take for its metrics, and until nothing runs any more.
_QUIET = 10.0


@dataclasses.dataclass
class Choice:
    """One text of an answer, with the functions that it calls, each with its arguments in a line;
    why it ended, if it did; and what the server reports of each of its tokens and the prompt's."""

    text: str = ""
    calls: str = ""
    finish: str = ""
    scores: list[Any] = dataclasses.field(default_factory=list)
    prompt_scores: list[Any] = dataclasses.field(default_factory=list)

    def add(self, content: dict[str, Any]) -> bool:
        """Adds a piece of it, or the whole; returns whether there is text in it."""
        message = content.get("delta") or content.get("message") or content
        text, calls = message.get("text") or message.get("content") or "", message.get("tool_calls")
        self.text += text
        for function in (call["function"] for call in calls or ()):
            self.calls += f"\n{function['name']} " if "name" in function else ""
            self.calls += function.get("arguments", "")
        self.finish = content.get("finish_reason") or self.finish
        scores = content.get("logprobs") or {}
        if "tokens" in scores:  # of /v1/completions
            names = "tokens", "token_logprobs", "top_logprobs", "text_offset"
            self.scores += zip(*(scores[name] for name in names), strict=True)
        self.scores += scores.get("content") or []
        self.prompt_scores += content.get("prompt_logprobs") or []
        return bool(text or calls)


@dataclasses.dataclass
class Answer:
    """The outcome of a request: HTTP's status, 0 without a response; its texts, by their numbers,
    and numbers of tokens, as the server counts them; a description of its failure, in one line;
    and whether the client hung up. Times, when it was sent, of every chunk with text, and of the
    last chunk or the failure, are in seconds of `time.perf_counter`."""

    status: int = 0
    choices: dict[int, Choice] = dataclasses.field(default_factory=dict)
    usage: dict[str, int] = dataclasses.field(default_factory=dict)
    start: float = 0.0
    times: list[float] = dataclasses.field(default_factory=list)
    end: float = 0.0
    error: str = ""
    cancelled: bool = False

    @property
    def text(self) -> str:
        """All texts, one after the other."""
        return "".join(self.choices[index].text for index in sorted(self.choices))

    @property
    def tokens(self) -> int:
        """Number of new tokens."""
        return self.usage.get("completion_tokens", 0)

    @property
    def first(self) -> float | None:
        """Seconds to the first token, or None without one."""
        return self.times[0] - self.start if self.times else None

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first one, or None with fewer than two tokens."""
        if not self.times or self.tokens < 2:
            return None
        return (self.end - self.times[0]) / (self.tokens - 1)

    @property
    def complete(self) -> bool:
        """True if every text ended, and the server told the numbers of tokens."""
        ends = [choice.finish for choice in self.choices.values()]
        return bool(self.usage and ends) and all(ends)

    def add(self, content: dict[str, Any]) -> None:
        """Adds a chunk, or a whole response, which comes now; raises ValueError, LookupError,
        AttributeError or TypeError if it is an error or not one of the API's."""
        if "error" in content:
            raise ValueError(f"within the answer: {json.dumps(content['error'])[:200]}")
        # In chats the prompt's are next to the texts.
        beside = {"prompt_logprobs": content.get("prompt_logprobs")}
        for piece in content["choices"]:
            self.end = time.perf_counter()
            if self.choices.setdefault(piece.get("index", 0), Choice()).add(beside | piece):
                self.times.append(self.end)
        # Without the details: what was cached depends on what was asked before.
        usage = (content.get("usage") or {}).items()
        self.usage |= {name: count for name, count in usage if name.endswith("_tokens")}


class Client:
    """Connections to one server; within its block, `model` is the server's name of its model."""

    def __init__(self, url: str, timeout: float):
        """Opens nothing yet; `timeout` is in seconds, for a whole request."""
        self.url, self.model = url.rstrip("/").removesuffix("/v1"), ""
        self.timeout, headers = timeout, {"Content-Type": "application/json"}
        if key := os.environ.get("DART_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        how = {"limits": httpx.Limits(), "trust_env": False}  # as many connections as clients
        self.http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=None, **how)

    async def __aenter__(self) -> Self:
        """Asks the server for its model; raises UserError if it does not tell."""
        try:
            async with asyncio.timeout(10):
                page = await self.http.get("/v1/models")
            self.model = page.raise_for_status().json()["data"][0]["id"]
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, LookupError) as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"{self.url} does not answer as a server: {reason}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes all connections."""
        await self.http.aclose()

    async def ask(
        self, body: Body, *, stream: bool = False, patience: float | None = None
    ) -> Answer:
        """Returns the answer to a request, a chat if it has messages, taken in chunks if `stream`;
        errors are in the answer. The client hangs up after `patience` seconds."""
        if stream:
            options = {"include_usage": True} | body.get("stream_options", {})
            body = body | {"stream": True, "stream_options": options}
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        content = json.dumps({"model": self.model} | body)
        return await self.send(path, content, stream=stream, patience=patience)

    async def send(
        self, path: str, content: str, *, stream: bool = False, patience: float | None = None
    ) -> Answer:
        """Returns the answer to a body as it is written; see `ask`."""
        answer = Answer(start=time.perf_counter())
        try:
            async with (
                asyncio.timeout(self.timeout if patience is None else patience),
                self.http.stream("POST", path, content=content.encode()) as response,
            ):
                answer.status = response.status_code
                if answer.status == 200:
                    async for part in _contents(response, stream):
                        answer.add(part)
                    if not answer.complete:
                        answer.error = "the answer ended without a finish_reason or usage"
                else:
                    text = (await response.aread()).decode("utf-8", "replace")
                    answer.error = f"status {answer.status}: {' '.join(text.split())[:4000]}"
        except TimeoutError:
            answer.cancelled = patience is not None
            answer.error = "" if answer.cancelled else f"no end after {self.timeout:g} s"
        except (
            httpx.HTTPError, OSError, ValueError, LookupError, AttributeError, TypeError
        ) as error:  # fmt: skip
            answer.error = f"{type(error).__name__}: {error}"
        answer.end = answer.end or time.perf_counter()
        return answer

    async def metrics(self) -> dict[str, float]:
        """Returns the server's metrics, summed over labels, by their names without prefix; none if
        it has none. Raises UserError if it does not answer."""
        try:
            page = await self.http.get("/metrics", timeout=_QUIET)
        except httpx.HTTPError as error:
            raise UserError(f"{self.url} does not answer any more: {error!r}") from None
        totals: dict[str, float] = {}
        if page.status_code == 200:
            for family in text_string_to_metric_families(page.text):
                for sample in family.samples:
                    name = sample.name.rpartition(":")[2]
                    totals[name] = totals.get(name, 0.0) + sample.value
        return totals

    async def quiet_metrics(self) -> dict[str, float]:
        """Returns its metrics as soon as no request runs or waits, or after `_QUIET` seconds."""
        end = time.monotonic() + _QUIET
        while True:
            metrics = await self.metrics()
            busy = metrics.get("num_requests_running"), metrics.get("num_requests_waiting")
            if not any(busy) or time.monotonic() > end:
                return metrics
            await asyncio.sleep(0.05)


async def _contents(response: httpx.Response, stream: bool) -> AsyncIterator[dict[str, Any]]:
    """Yields a response, or the events of a stream up to [DONE], each of one line."""
    if not stream:
        yield json.loads(await response.aread())
        return
    rest = b""
    # Not httpx's lines, which also end within an event, at characters such as U+2028.
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):
                yield json.loads(data)
