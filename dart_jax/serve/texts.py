"""Texts of one answer while the engine generates them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dart_jax.engine.request import Finish, Logprobs, Output, Request
from dart_jax.engine.thread import AnyEngine, Ticket
from dart_jax.generation import GeneratedText
from dart_jax.grammar.matching import GrammarError
from dart_jax.serve.body.errors import ApiError, bad, internal
from dart_jax.serve.logprobs import Score
from dart_jax.serve.metrics import Metrics
from dart_jax.serve.prompts import Echo
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer


class News(NamedTuple):
    """The part of a text that was not sent yet.

    Attributes:
      text: its characters, which nothing that follows can change.
      scores: of its tokens, if they were asked for.
      finish: why the text ended, or None if more follows.
      first: whether nothing was sent before.
    """

    text: str
    scores: list[Score]
    finish: Finish | None
    first: bool


class Text:
    """One text: takes the engine's outputs, and gives what is new.

    Attributes:
      request: asks the engine for it.
      prompt_scores: of the prompt's tokens; empty until they come, if they were asked for.
      cached_tokens: of the prompt, which were not read.
      first: when its first tokens came, in seconds of `time.monotonic`, or None before.
      last: when its last ones came.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Request,
        stop: Sequence[str] = (),
        options: Mapping[str, Any] = {},
        echo: Echo | None = None,
    ):
        """Starts an empty text after an echo of its prompt; for `stop` and `options` see
        `TextStream`."""
        self.request = request
        self.prompt_scores: list[Score] = []
        self.cached_tokens = 0
        self.first: float | None = None
        self.last = 0.0
        ids = request.stop_ids
        self._text = GeneratedText(tokenizer, stop, ids, **options)
        # The one above holds back what may begin a stop string; this one knows where tokens are.
        self._places = TextStream(tokenizer, (), ids, **options)
        self._echo = echo
        self._offset = 0 if echo is None else len(echo.text)  # characters of the tokens so far
        self._scores: list[Score] = []  # not sent yet
        self._pieces = 0  # of the text that were sent
        self._sent = self._last = False  # whether any were, and whether the last ones were

    @property
    def tokens(self) -> int:
        """Number of new tokens so far."""
        return len(self._text.tokens)

    @property
    def token_ids(self) -> list[int]:
        """The new tokens so far."""
        return self._text.tokens

    @property
    def finish(self) -> Finish | None:
        """Why it ended, or None while it goes on."""
        return self._text.finish

    def push(self, output: Output) -> None:
        """Adds tokens, up to the one that ends the text."""
        before = self.tokens
        self.cached_tokens += output.cached
        self._text.append(output.tokens.tolist(), output.drafted.tolist())
        if output.finish is not None:
            self._text.end()
        if output.prompt_logprobs is not None:
            self._add_prompt(output.prompt_logprobs)
        logprobs = output.logprobs(self.request.logprobs)
        if logprobs is None:
            return
        for token, (own, top) in zip(self._text.tokens[before:], _pairs(logprobs), strict=False):
            self._scores.append(Score(token, own, top, self._offset))
            self._offset += len(self._places.push(token))

    def _add_prompt(self, logprobs: Logprobs) -> None:
        """Adds the scores of the prompt."""
        assert logprobs.ranks is not None
        tokens, echo, most = self.request.tokens.tolist(), self._echo, self.request.logprobs
        offsets = [0] * len(tokens) if echo is None else echo.offsets
        self.prompt_scores = [Score(tokens[0], None, (), offsets[0])]
        every = zip(tokens[1:], _pairs(logprobs), offsets[1:], logprobs.ranks.tolist(), strict=True)
        for token, (own, top), offset, rank in every:
            self.prompt_scores.append(Score(token, own, top, offset, rank))
        if echo is not None and most is not None:
            self._scores = [each._replace(top=each.top[:most]) for each in self.prompt_scores]

    def take(self) -> News | None:
        """Returns what is new since the last call, or None if nothing is."""
        new = "".join(self._text.pieces[self._pieces :])
        if self._last or not (new or self._scores or self.finish):
            return None
        if self._echo is not None and not self._sent:
            new = self._echo.text + new
        news = News(new, self._scores, self.finish, first=not self._sent)
        self._pieces, self._scores = len(self._text.pieces), []
        self._sent, self._last = True, self.finish is not None
        return news


def _pairs(logprobs: Logprobs) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """Yields each token's own log-probability, and the most likely ids with theirs."""
    columns = logprobs.own.tolist(), logprobs.top_ids.tolist(), logprobs.top.tolist()
    for own, ids, values in zip(*columns, strict=True):
        yield own, list(zip(ids, values, strict=True))


class Texts:
    """Texts of one answer, with attributes as `__init__` has them.

    The engine's outputs are kept here while a slow client reads: not more than the texts
    themselves, and they are sent together once the client has caught up.
    """

    def __init__(
        self,
        engine: AnyEngine,
        metrics: Metrics,
        texts: list[Text],
        arrived: float,
        interval: float,
    ):
        """Passes the texts' requests to the engine.

        Args:
          engine: generates the texts.
          metrics: receives the times.
          texts: the texts, empty.
          arrived: when the client asked, in seconds of `time.monotonic`.
          interval: seconds between two returns of `more`, at least, except for an end.

        Raises:
          UserError: as `EngineThread.submit`; then nothing is generated.
        """
        self.texts, self.arrived, self._metrics = texts, arrived, metrics
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._woken = False  # whether the loop is to set `_news`
        self._interval, self._next = interval, 0.0  # when `more` may return again
        self._pausing = False  # whether only an end is news
        self._inbox: deque[tuple[int, Output, float]] = deque()
        self._tickets: dict[int, Ticket] = {}
        try:
            for index, text in enumerate(texts):
                self._tickets[index] = engine.submit(text.request, partial(self._put, index))
        except BaseException:
            self._cancel()
            raise

    @property
    def running(self) -> bool:
        """True while more follows."""
        return any(text.finish is None for text in self.texts)

    @property
    def tokens(self) -> int:
        """Number of new tokens of all texts so far."""
        return sum(text.tokens for text in self.texts)

    async def more(self) -> None:
        """Waits until there is more of a text.

        Raises:
          ApiError: the texts cannot be completed.
        """
        await self._pause()
        if not self._inbox:
            await self._news.wait()
        self._news.clear()
        # In this order: what comes from now on wakes the loop again.
        self._woken = False
        while self._inbox:
            index, output, when = self._inbox.popleft()
            text, error = self.texts[index], output.error
            if isinstance(error, GrammarError):
                raise bad(str(error)) from error
            if error is not None:
                raise error if isinstance(error, ApiError) else internal() from error
            if text.finish is not None:
                continue  # under way when a stop string was completed
            self._measure(text, when)
            text.push(output)
            if text.finish is not None:
                self._end(index)
        self._next = self._loop.time() + self._interval

    async def _pause(self) -> None:
        """Waits until `more` may return again, or a text has ended. Meanwhile the engine does not
        wake the loop, which small models would do a thousand times a second."""
        if self._loop.time() >= self._next:
            return
        self._pausing = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._next):
                    await self._news.wait()
        finally:
            self._pausing = False

    def close(self) -> None:
        """Cancels what still runs."""
        for text in self.texts:
            if text.finish is None:
                self._metrics.count("abort")
        self._cancel()

    def _cancel(self) -> None:
        for ticket in self._tickets.values():
            ticket.cancel()
        self._tickets = {}

    def _put(self, index: int, output: Output) -> None:
        """Receives an output, on the engine's thread."""
        self._inbox.append((index, output, time.monotonic()))
        if not self._woken and (output.last or not self._pausing):
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._news.set)

    def _measure(self, text: Text, now: float) -> None:
        if text.first is None:
            text.first = now
            self._metrics.observe(first_token=now - self.arrived)
        else:
            self._metrics.observe(step=now - text.last)
        text.last = now

    def _end(self, index: int) -> None:
        text, ticket = self.texts[index], self._tickets[index]
        # Where a stop string was completed, the engine does not know of it.
        ticket.cancel()
        assert text.first is not None
        assert text.finish is not None
        self._metrics.count(text.finish)
        self._metrics.observe(
            prompt_tokens=len(text.request.tokens),
            new_tokens=text.tokens,
            waiting=(ticket.begun or self.arrived) - self.arrived,
            seconds=text.last - self.arrived,
        )
        if text.tokens > 1:
            self._metrics.observe(per_token=(text.last - text.first) / (text.tokens - 1))
