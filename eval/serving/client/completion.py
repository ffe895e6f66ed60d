"""A request to /v1/completions, and its answer with the time of every chunk."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from eval.serving.client.connection import Address, Connection, connection
from eval.serving.client.events import EventReader

PATH = "/v1/completions"


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt and its options, by the API's names.

    Attributes:
      prompt: token ids.
      max_tokens: maximum number of new tokens.
      temperature: 0 is greedy.
      seed: of sampling.
      ignore_eos: go on after the end of the text; not in OpenAI's API, but in most servers'.
      stop: strings that end the text.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()

    def body(self, model: str, stream: bool = True) -> dict[str, Any]:
        """What is sent; with the number of tokens at the end of a stream."""
        content: dict[str, Any] = {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }
        if self.ignore_eos:
            content["ignore_eos"] = True
        if self.stop:
            content["stop"] = self.stop
        if stream:
            content |= {"stream": True, "stream_options": {"include_usage": True}}
        return content


class Server(NamedTuple):
    """Where requests go.

    Attributes:
      address: the server's.
      model: the name that it knows its model by.
    """

    address: Address
    model: str


@dataclasses.dataclass
class Answer:
    """What came of a request; times are in seconds, of `time.perf_counter`.

    Attributes:
      start: from when latency counts: when it was sent or, in an open loop, should have been.
      sent: when it was sent.
      times: when each chunk with text came.
      end: when the last token came, or the request failed.
      text: all of it.
      finish: why it ended, as the server says; None if it did not end well.
      tokens: new tokens, as the server counts them; None if it does not tell.
      prompt_tokens: the same of the prompt.
      status: HTTP's; 0 if there was no response.
      error: what went wrong, in one line.
      cancelled: whether this side ended it.
    """

    start: float = 0.0
    sent: float = 0.0
    times: list[float] = dataclasses.field(default_factory=list)
    end: float = 0.0
    text: str = ""
    finish: str | None = None
    tokens: int | None = None
    prompt_tokens: int = 0
    status: int = 0
    error: str = ""
    cancelled: bool = False

    @property
    def complete(self) -> bool:
        """Whether it ended well."""
        return self.finish is not None and not self.error and not self.cancelled

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return (self.times[0] if self.times else self.end) - self.start

    @property
    def latency(self) -> float:
        """Time to the last token."""
        return self.end - self.start

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first one; None with fewer than two."""
        if not self.tokens or self.tokens < 2 or not self.times:
            return None
        return (self.end - self.times[0]) / (self.tokens - 1)

    @property
    def itl(self) -> list[float]:
        """Times between chunks, each of one token or several."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a client reads.

    Attributes:
      stream: in chunks, not at once.
      pause: seconds to wait after every chunk.
      cancel_after: chunks after which it hangs up; None for never.
      timeout: seconds after which it gives up.
    """

    stream: bool = True
    pause: float = 0.0
    cancel_after: int | None = None
    timeout: float = 300.0


async def ask(
    server: Server,
    request: Request,
    reading: Reading = Reading(),
    start: float | None = None,
    answer: Answer | None = None,
) -> Answer:
    """Sends a request and reads its answer; whatever goes wrong is in the answer.

    Args:
      server: whom to ask.
      request: what.
      reading: how to read.
      start: when it should have been sent, if that was planned.
      answer: where the answer is put as it comes, for others to look at.
    """
    answer = Answer() if answer is None else answer
    body = json.dumps(request.body(server.model, reading.stream)).encode()
    try:
        async with asyncio.timeout(reading.timeout):
            async with connection(server.address, slow=reading.pause > 0) as opened:
                answer.sent = time.perf_counter()
                answer.start = answer.sent if start is None else start
                await opened.send("POST", PATH, body)
                answer.status = opened.status
                if opened.status != 200:
                    answer.error = f"status {opened.status}: {_shown(await opened.body())}"
                elif reading.stream:
                    await _read_stream(opened, answer, reading)
                else:
                    _take(json.loads(await opened.body()), answer)
    except TimeoutError:
        answer.error = f"no end after {reading.timeout:g} s"
    except (OSError, ValueError, KeyError, TypeError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    now = time.perf_counter()
    answer.sent, answer.start = answer.sent or now, answer.start or start or now
    answer.end = answer.end or now
    if not answer.error and not answer.cancelled:
        if answer.finish is None:
            answer.error = "the stream ended without a finish_reason"
        elif answer.tokens is None:
            answer.error = "the server does not tell the number of tokens (usage)"
    return answer


async def _read_stream(opened: Connection, answer: Answer, reading: Reading) -> None:
    """Reads events until [DONE]."""
    events = EventReader()
    async for data in opened.chunks():
        for event in events.feed(data):
            if event == "[DONE]":
                return
            _take(json.loads(event), answer)
        if reading.cancel_after is not None and len(answer.times) >= reading.cancel_after:
            answer.cancelled = True
            return
        if reading.pause:
            await asyncio.sleep(reading.pause)


def _take(content: Any, answer: Answer) -> None:
    """Adds a chunk, or a whole response, to an answer."""
    now = time.perf_counter()
    if "error" in content:
        answer.error = f"within the stream: {_shown(json.dumps(content['error']).encode())}"
        return
    for choice in content.get("choices", ()):
        if choice.get("text") or choice.get("token_ids"):
            answer.text += choice.get("text") or ""
            answer.times.append(now)
        answer.finish = choice.get("finish_reason") or answer.finish
        answer.end = now
    if usage := content.get("usage"):
        answer.tokens = usage["completion_tokens"]
        answer.prompt_tokens = usage.get("prompt_tokens", 0)


def _shown(body: bytes, most: int = 200) -> str:
    """A body in one line."""
    return " ".join(body.decode("utf-8", "replace").split())[:most]


def same_texts(some: Sequence[Answer], others: Sequence[Answer]) -> tuple[int, int]:
    """How many answers to the same requests have the same text, and of how many both ended well."""
    pairs = [
        (one, other)
        for one, other in zip(some, others, strict=True)
        if one.complete and other.complete
    ]
    return sum(one.text == other.text for one, other in pairs), len(pairs)
