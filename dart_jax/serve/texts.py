"""The texts of one answer while the engine generates them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from dart_jax.engine.request import Finish, Logprobs, Request, Update
from dart_jax.serve.errors import ApiError, internal
from dart_jax.serve.logprobs import Score
from dart_jax.serve.metrics import Metrics
from dart_jax.serving.interface import AnyEngine, AnyTicket
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """What is new of a text.

    Attributes:
      text: its characters, which nothing that follows can change.
      tokens: how many tokens were added, even if no character is final.
      scores: of these tokens, if they were asked for.
      finish: why the text ended; None if more follows.
    """

    text: str = ""
    tokens: int = 0
    scores: tuple[Score, ...] = ()
    finish: Finish | None = None

    def followed_by(self, other: Piece) -> Piece:
        """Both in one."""
        return Piece(
            self.text + other.text,
            self.tokens + other.tokens,
            self.scores + other.scores,
            other.finish,
        )


class Text:
    """One text: turns the engine's updates into pieces.

    Attributes:
      tokens: new tokens so far.
      finish: why it ended; None while it goes on.
      first: when its first tokens came, in seconds of `time.monotonic`; None before.
      last: when its last ones came.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], stop_ids: Sequence[int]):
        """`stop` and `stop_ids` end the text."""
        self.tokens = 0
        self.finish: Finish | None = None
        self.first: float | None = None
        self.last = 0.0
        self._stream = TextStream(tokenizer, stop, stop_ids)
        # The stream above holds back what may begin a stop string; this one knows where tokens are.
        self._places = TextStream(tokenizer, stop_ids=stop_ids)
        self._offset = 0

    def push(self, update: Update) -> Piece:
        """Adds tokens, up to the one that ends the text."""
        text: list[str] = []
        scores: list[Score] = []
        count = 0
        for place, token in enumerate(update.tokens):
            count += 1
            if update.logprobs is not None:
                scores.append(self._score(token, update.logprobs, place))
            text.append(self._stream.push(token))
            if self._stream.stopped:
                self.finish = "stop"
                break
        if self.finish is None and update.finish is not None:
            text.append(self._stream.finish())
            self.finish = "stop" if self._stream.stopped else update.finish
        self.tokens += count
        return Piece("".join(text), count, tuple(scores), self.finish)

    def _score(self, token: int, logprobs: Logprobs, place: int) -> Score:
        ids, values = logprobs.top_ids[place].tolist(), logprobs.top[place].tolist()
        offset = self._offset
        self._offset += len(self._places.push(token))
        return Score(token, float(logprobs.own[place]), list(zip(ids, values, strict=True)), offset)


class Texts:
    """The texts of one answer.

    What the engine produces while a slow client reads is kept here: not more than the texts
    themselves, and it is sent in one piece once the client has caught up.
    """

    def __init__(
        self,
        engine: AnyEngine,
        metrics: Metrics,
        requests: Sequence[Request],
        stop: Sequence[str],
        arrived: float,
        interval: float = 0.0,
    ):
        """Passes the requests to the engine.

        Args:
          engine: generates the texts.
          metrics: is told how long it takes.
          requests: one for each text.
          stop: strings that end a text.
          arrived: when the client asked, in seconds of `time.monotonic`.
          interval: seconds between pieces, at least; the first and the last one do not wait.

        Raises:
          UserError: as `Engine.submit`; then nothing is generated.
        """
        tokenizer = engine.model.tokenizer
        self._requests, self._metrics, self._arrived = requests, metrics, arrived
        self.texts = [Text(tokenizer, stop, request.stop_ids) for request in requests]
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._woken = False  # whether the loop is to set `_news`
        self._interval, self._next = interval, 0.0  # when the next piece may come
        self._pausing = False  # whether only an end is news
        self._inbox: deque[tuple[int, Update | BaseException, float]] = deque()
        self._tickets: list[AnyTicket] = []
        try:
            for index, request in enumerate(requests):
                self._tickets.append(engine.submit(request, partial(self._put, index)))
        except BaseException:
            self._cancel()
            raise

    @property
    def running(self) -> bool:
        """Whether more follows."""
        return any(text.finish is None for text in self.texts)

    async def more(self) -> list[tuple[int, Piece]]:
        """Waits for what is new: at most one piece of each text, with the text's index.

        Raises:
          ApiError: the texts cannot be completed.
        """
        await self._pause()
        if not self._inbox:
            await self._news.wait()
        self._news.clear()
        # In this order: what comes from now on wakes the loop again.
        self._woken = False
        pieces: dict[int, Piece] = {}
        while self._inbox:
            index, update, when = self._inbox.popleft()
            text = self.texts[index]
            if isinstance(update, BaseException):
                raise update if isinstance(update, ApiError) else internal() from update
            if text.finish is not None:
                continue  # under way when a stop string was found
            self._measure(text, when)
            piece = text.push(update)
            pieces[index] = pieces[index].followed_by(piece) if index in pieces else piece
            if text.finish is not None:
                self._end(index)
        self._next = self._loop.time() + self._interval
        return list(pieces.items())

    async def _pause(self) -> None:
        """Waits until the next piece may come, or a text has ended. Meanwhile the engine does not
        wake the loop, which small models would do a thousand times a second."""
        if self._loop.time() >= self._next:
            return
        self._pausing = True
        try:
            async with asyncio.timeout_at(self._next):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self._pausing = False

    def abort(self, error: ApiError) -> None:
        """Makes `more` raise an error, instead of what has not been taken yet."""
        self._inbox.clear()
        self._inbox.append((0, error, 0.0))
        self._news.set()

    def close(self) -> None:
        """Cancels what still runs."""
        for text in self.texts:
            if text.finish is None:
                self._metrics.aborted()
        self._cancel()

    def _cancel(self) -> None:
        for ticket in self._tickets:
            ticket.cancel()
        self._tickets = []

    def _put(self, index: int, update: Update | BaseException) -> None:
        """Receives an update, on the engine's thread."""
        self._inbox.append((index, update, time.monotonic()))
        ends = isinstance(update, BaseException) or update.finish is not None
        if not self._woken and (ends or not self._pausing):
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._news.set)

    def _measure(self, text: Text, now: float) -> None:
        if text.first is None:
            text.first = now
            self._metrics.first_token(now - self._arrived)
        else:
            self._metrics.step(now - text.last)
        text.last = now

    def _end(self, index: int) -> None:
        text = self.texts[index]
        ticket = self._tickets[index]
        # Where a stop string was found, the engine does not know of it.
        ticket.cancel()
        assert text.first is not None
        assert text.finish is not None
        self._metrics.finished(
            text.finish,
            prompt_tokens=len(self._requests[index].tokens),
            new_tokens=text.tokens,
            waiting=(ticket.begun or self._arrived) - self._arrived,
            decoding=text.last - text.first,
            seconds=text.last - self._arrived,
        )
