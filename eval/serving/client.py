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
from eval.serving.requests import Body

# Seconds that a server may take for its metrics, and until nothing runs any more.
_QUIET = 10.0


@dataclasses.dataclass
class Answer:
    """The outcome of a request.

    Attributes:
      status: HTTP's; 0 without a response.
      text: its text, or the body of a request that was refused.
      finish: why the text ended, as the server says; None if it did not end.
      tokens: new tokens, as the server counts them.
      start: `time.perf_counter` when it was sent, in seconds.
      times: the same of every chunk with text.
      end: the same of its last chunk, or of its failure.
      error: a description of its failure, in one line.
      cancelled: whether the client hung up.
    """

    status: int = 0
    text: str = ""
    finish: str | None = None
    tokens: int = 0
    start: float = 0.0
    times: list[float] = dataclasses.field(default_factory=list)
    end: float = 0.0
    error: str = ""
    cancelled: bool = False

    @property
    def first(self) -> float | None:
        """Seconds to the first token; None without one."""
        return self.times[0] - self.start if self.times else None

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first one; None with fewer than two tokens."""
        if not self.times or self.tokens < 2:
            return None
        return (self.end - self.times[0]) / (self.tokens - 1)

    def add(self, content: dict[str, Any]) -> None:
        """Adds a chunk, or a whole response, which comes now; raises ValueError, LookupError or
        TypeError if it is an error or not one of the API's."""
        if "error" in content:
            raise ValueError(f"within the answer: {json.dumps(content['error'])[:200]}")
        for choice in content["choices"]:
            self.end = time.perf_counter()
            self.finish = choice.get("finish_reason") or self.finish
            if choice["text"]:
                self.text += choice["text"]
                self.times.append(self.end)
        if usage := content.get("usage"):
            self.tokens = usage["completion_tokens"]


class Client:
    """Connections to one server; within its block, `model` is the server's name of its model, and
    `max_length` its longest context, 0 if it does not tell."""

    def __init__(self, url: str, timeout: float):
        """Opens nothing yet; `timeout` is in seconds, for a whole request."""
        key = os.environ.get("DART_API_KEY")
        self.url, self.model, self.max_length = url.rstrip("/").removesuffix("/v1"), "", 0
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=None,
            limits=httpx.Limits(),  # as many connections as there are clients
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        """Asks the server for its model; raises UserError if it does not tell."""
        try:
            async with asyncio.timeout(10):
                page = await self._http.get("/v1/models")
            model = page.raise_for_status().json()["data"][0]
            self.model, self.max_length = model["id"], model.get("max_model_len", 0)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, LookupError) as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"{self.url} does not answer as a server: {reason}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def ask(
        self,
        body: Body,
        *,
        stream: bool = False,
        patience: float | None = None,
    ) -> Answer:
        """Returns the answer to a request; whatever goes wrong is in the answer.

        Args:
          body: the request.
          stream: take the answer in chunks.
          patience: seconds after which to hang up; None for never.
        """
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        body = {"model": self.model} | body | options
        answer = Answer(start=time.perf_counter())
        try:
            async with (
                asyncio.timeout(self._timeout if patience is None else patience),
                self._http.stream("POST", "/v1/completions", json=body) as response,
            ):
                answer.status = response.status_code
                if answer.status == 200:
                    async for content in _contents(response, stream):
                        answer.add(content)
                    if answer.finish is None or not answer.tokens:
                        answer.error = "the answer ended without a finish_reason or usage"
                else:
                    answer.text = (await response.aread()).decode("utf-8", "replace")
                    answer.error = f"status {answer.status}: {' '.join(answer.text.split())[:200]}"
        except TimeoutError:
            answer.cancelled = patience is not None
            answer.error = "" if answer.cancelled else f"no end after {self._timeout:g} s"
        except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.end = answer.end or time.perf_counter()
        return answer

    async def metrics(self) -> dict[str, float]:
        """Returns the server's metrics, summed over labels, by their names without prefix; none if
        it has none. Raises UserError if it does not answer."""
        try:
            page = await self._http.get("/metrics", timeout=_QUIET)
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
