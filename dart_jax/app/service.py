"""Serves visitors: from a text and settings to an answer that is being written."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from dart_jax.app.answer import Answer, Words, encode
from dart_jax.app.methods import Methods
from dart_jax.app.settings import LEAST, Settings
from dart_jax.app.turns import Job, Turns
from dart_jax.app.warm import Warm
from dart_jax.errors import UserError
from dart_jax.text_generation import TextGeneration

_logger = logging.getLogger(__name__)

# How often a page is told of new text, in seconds.
_REFRESH = 0.08

# How long Clear waits for the end of what was going, in seconds: longer where nobody reads it.
_PATIENCE = 5.0

# Last answers that are kept for looking at their trees, also by a page that is loaded again.
_REMEMBERED = 64

COMPILING = "Compiling for these settings: some seconds, the first time only."


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An answer that could begin.

    Attributes:
      answer: of one method.
      make: makes its generation once more, to run its programs before.
      generation: its own.
    """

    answer: Answer
    make: Callable[[], TextGeneration]
    generation: TextGeneration


class Replaced(Exception):
    """The visitor went on to something else, or cleared the page: what was going is not shown."""


class Visit:
    """What one visitor has going: at most one thing at a time."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.stopped = self.replaced = False
        self.over = asyncio.Event()  # nothing is told of it any more

    def stop(self) -> None:
        """Ends it, without waiting."""
        self.stopped = True
        if self.job is not None:
            self.job.cancel()

    def replace(self) -> None:
        """Ends it for something else."""
        self.replaced = True
        self.stop()


class Service:
    """One model for all visitors, who are told apart by a key and share nothing else.

    Attributes:
      methods: that can be chosen.
      most: new tokens of an answer.
      longest: tokens of a prompt and its answer.
      chat: whether the target knows chats; else it goes on with a text.
    """

    def __init__(
        self, methods: Methods, *, most: int, longest: int, together: int = 16, waiting: int = 48
    ):
        """Starts the worker; see `Turns` for the numbers of visitors."""
        self.methods = methods
        self.longest = min(longest, methods.base.target.max_length)
        if most < LEAST:
            raise UserError(f"--max-new-tokens must be at least {LEAST}, got {most}")
        if most >= self.longest:
            raise UserError(
                f"answers of {most} tokens do not fit into {self.longest}, prompt included; lower "
                "--max-new-tokens"
            )
        self.most = most
        self.chat = bool(methods.base.tokenizer.chat_template)
        self.turns = Turns(together, waiting)
        self._warm = Warm(self.turns)
        self._compiler = ThreadPoolExecutor(1, "compiler")
        self._visits: dict[str, Visit] = {}
        self._last: OrderedDict[str, tuple[Answer, str]] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends all work and waits for that."""
        self.turns.close()
        self._compiler.shutdown(cancel_futures=True)

    @property
    def default(self) -> Settings:
        """What the page opens with."""
        return Settings.default(self.methods, self.most)

    def settings(self, values: object) -> Settings:
        """See `Settings.of`."""
        return Settings.of(values, self.methods, self.most)

    def prepare(self, words: Words, settings: Settings) -> Prepared:
        """Encodes a text; raises UserError if it is empty or too long."""
        method = self.methods[settings.method]
        room = self.longest - settings.max_new_tokens
        tokens = encode(method.model, words, room)

        def make() -> TextGeneration:
            return method.model.stream(tokens, settings.generation(self.methods))

        generation = make()
        return Prepared(Answer(method.title, generation), make, generation)

    def warm_up(self, words: Words) -> None:
        """Compiles what the page opens with, in the background."""
        for name in dict.fromkeys((self.methods.default, list(self.methods)[-1])):
            settings = dataclasses.replace(self.default, method=name)
            with contextlib.suppress(UserError):  # too long for a small --max-length
                self._compiler.submit(self._warm.prepare, self.prepare(words, settings).make)

    async def serve(
        self, visitor: str, prepared: Sequence[Prepared], steps: Callable[[], Iterator[object]]
    ) -> AsyncGenerator[str, None]:
        """Runs `steps`, which write what was prepared, and yields whenever there is more to show: a
        line that says what is being waited for.

        What the visitor had going before ends. It ends too when nobody iterates any more.

        Raises:
          UserError: too many visitors, or the steps failed.
          Replaced: the visitor has something else going now, or cleared the page.
        """
        visit = Visit()
        with self._lock:
            before, self._visits[visitor] = self._visits.get(visitor), visit
        if before is not None:
            before.replace()
        try:
            async with contextlib.aclosing(self._run(visit, prepared, steps)) as lines:
                async for line in lines:
                    if visit.replaced:
                        break
                    yield line
            if visit.replaced:
                raise Replaced
        finally:
            visit.stop()
            visit.over.set()
            with self._lock:
                if self._visits.get(visitor) is visit:
                    del self._visits[visitor]

    async def _run(
        self, visit: Visit, prepared: Sequence[Prepared], steps: Callable[[], Iterator[object]]
    ) -> AsyncGenerator[str, None]:
        for one in prepared:
            if self._warm.knows(one.generation):
                continue
            yield COMPILING
            compiled = self._compiler.submit(self._warm.prepare, one.make)
            try:
                while not (compiled.done() or visit.stopped):
                    await asyncio.sleep(_REFRESH)
            finally:
                compiled.cancel()  # if it has not begun
            if visit.stopped or compiled.cancelled():
                return
            if (error := compiled.exception()) is not None:
                _logger.error("compiling failed", exc_info=error)
                raise _failed(error)
        visit.job = self.turns.add(steps())
        if visit.stopped:
            visit.stop()
        async for line in self._follow(visit.job, [one.answer for one in prepared]):
            yield line

    async def _follow(self, job: Job, answers: list[Answer]) -> AsyncGenerator[str, None]:
        shown = None
        while True:
            finished = job.finished  # before looking: nothing comes later
            ahead = self.turns.ahead(job)
            now = [ahead, *(answer.tokens for answer in answers)]
            if finished or now != shown:
                shown = now
                yield "" if ahead is None else f"{ahead} wait before you."
            if finished:
                break
            await asyncio.sleep(_REFRESH)
        if job.error is not None:
            raise _failed(job.error)

    def stop(self, visitor: str) -> None:
        """Ends what a visitor has going, at once."""
        if (visit := self._going(visitor)) is not None:
            visit.stop()

    async def clear(self, visitor: str) -> None:
        """Ends it, and waits until nothing is told of it any more; forgets the last answer."""
        if (visit := self._going(visitor)) is not None:
            visit.replace()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(visit.over.wait(), _PATIENCE)
        with self._lock:
            self._last.pop(visitor, None)

    def _going(self, visitor: str) -> Visit | None:
        """What a visitor has going."""
        with self._lock:
            return self._visits.get(visitor)

    def remember(self, visitor: str, answer: Answer, method: str) -> None:
        """Keeps a visitor's last answer, for its trees."""
        with self._lock:
            self._last[visitor] = answer, method
            self._last.move_to_end(visitor)
            if len(self._last) > _REMEMBERED:
                self._last.popitem(last=False)

    def inherit(self, visitor: str, before: str) -> bool:
        """Gives a visitor the last answer of another key, which only its own browser knows; whether
        there is one. Other tabs of that browser may still go by the old key."""
        last = self.last(before) if before else None
        if last is not None:
            self.remember(visitor, *last)
        return last is not None

    def last(self, visitor: str) -> tuple[Answer, str] | None:
        """A visitor's last answer and its method."""
        with self._lock:
            return self._last.get(visitor)


def _failed(error: BaseException) -> UserError:
    return UserError(f"the answer failed: {type(error).__name__}; try other settings")
