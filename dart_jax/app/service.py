"""Serves visitors: turns a prompt and settings into a running answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from dart_jax.app.answer import Answer, Prompt, encode
from dart_jax.app.methods import Methods
from dart_jax.app.settings import LEAST, Settings
from dart_jax.app.turns import Job, Turns
from dart_jax.app.warm import Warm
from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig, TextGeneration

_logger = logging.getLogger(__name__)

# Interval at which a page is updated with new text, in seconds.
_REFRESH = 0.08

# How long Clear waits for a running answer to end, in seconds. Without a reader it would not end.
_PATIENCE = 5.0

# Number of last answers kept for their trees, also for pages that are reloaded.
_KEPT_ANSWERS = 64

COMPILING = "Compiling for these settings; takes some seconds, only the first time."


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An answer that is ready to start.

    Attributes:
      answer: the answer of one method.
      make: creates another generation like its own, to compile its programs in advance.
      generation: its generation.
      later: creates one that later answers may run, but for which too much must still be compiled;
        None if there is none.
    """

    answer: Answer
    make: Callable[[], TextGeneration]
    generation: TextGeneration
    later: Callable[[], TextGeneration] | None = None


class Replaced(Exception):
    """The visitor started something else or cleared the page: the old answer is not shown."""


class Visit:
    """The current request of a visitor, who has at most one at a time."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.stopped = self.replaced = False
        self.over = asyncio.Event()  # no more updates are sent

    def stop(self) -> None:
        """Stops it, without waiting."""
        self.stopped = True
        if self.job is not None:
            self.job.cancel()

    def replace(self) -> None:
        """Stops it in favour of something else."""
        self.replaced = True
        self.stop()


class Service:
    """One model for all visitors, who are identified by a key and share nothing else.

    Attributes:
      methods: the methods to choose from.
      most: maximum new tokens of an answer.
      longest: maximum tokens of a prompt and its answer.
      chat: whether the target has a chat template; otherwise it continues texts.
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
        """Stops all work and waits until it has ended."""
        self.turns.close()
        self._warm.close()
        self._compiler.shutdown(cancel_futures=True)

    @property
    def default(self) -> Settings:
        """The initial settings of the page."""
        return Settings.default(self.methods, self.most)

    def settings(self, values: object) -> Settings:
        """See `Settings.of`."""
        return Settings.of(values, self.methods, self.most)

    def prepare(self, prompt: Prompt, settings: Settings) -> Prepared:
        """Encodes a prompt; raises UserError if it is empty or too long.

        Until the programs for trees of all sizes are compiled, trees have the default size.
        """
        method = self.methods[settings.method]
        room = self.longest - settings.max_new_tokens
        tokens = encode(method.model, prompt, room)

        def making(config: GenerationConfig) -> Callable[[], TextGeneration]:
            return lambda: method.model.stream(tokens, config)

        config, later = settings.generation(self.methods), None
        make = making(config)
        generation = make()
        changing = method.drafts and not settings.tree_nodes
        if changing and not self._warm.is_compiled(generation):
            later = make
            config = settings.with_fixed_trees(self.methods).generation(self.methods)
            make = making(config)
            generation = make()
        answer = Answer(method.title, settings.max_new_tokens, generation, config.search)
        return Prepared(answer, make, generation, later)

    def warm_up(self, prompt: Prompt) -> None:
        """Compiles the programs for the initial settings, in the background."""
        for name in dict.fromkeys((self.methods.default, list(self.methods)[-1])):
            settings = dataclasses.replace(self.default, method=name)
            with contextlib.suppress(UserError):  # too long for a small --max-length
                prepared = self.prepare(prompt, settings)
                self._compiler.submit(self._warm.prepare, prepared.make)
                self._compile_later(prepared)

    def _compile_later(self, prepared: Prepared) -> None:
        """Compiles in the background what later answers may run."""
        if prepared.later is not None:
            self._compiler.submit(self._warm.prepare, prepared.later)

    async def serve(
        self, visitor: str, prepared: Sequence[Prepared], steps: Callable[[], Iterator[object]]
    ) -> AsyncGenerator[str, None]:
        """Runs `steps`, which generate the prepared answers; yields at every update a line that
        says what the visitor is waiting for, if anything.

        The visitor's previous request is stopped, and this one when its iterator is closed.

        Raises:
          UserError: too many visitors, or the steps failed.
          Replaced: the visitor started something else or cleared the page.
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
            if self._warm.is_compiled(one.generation):
                continue
            yield COMPILING
            compiled = self._compiler.submit(self._warm.prepare, one.make)
            try:
                while not (compiled.done() or visit.stopped):
                    await asyncio.sleep(_REFRESH)
            finally:
                compiled.cancel()  # if it has not started
            if visit.stopped or compiled.cancelled():
                return
            if (error := compiled.exception()) is not None:
                _logger.error("compiling failed", exc_info=error)
                raise _failed(error)
        for one in prepared:
            self._compile_later(one)
        visit.job = self.turns.add(steps())
        if visit.stopped:
            visit.stop()
        async for line in self._follow(visit.job, [one.answer for one in prepared]):
            yield line

    async def _follow(self, job: Job, answers: list[Answer]) -> AsyncGenerator[str, None]:
        shown = None
        while True:
            finished = job.finished  # read first: no update comes after it
            ahead = self.turns.ahead(job)
            now = [ahead, *(answer.tokens for answer in answers)]
            if finished or now != shown:
                shown = now
                yield "" if ahead is None else f"{ahead} waiting ahead of you."
            if finished:
                break
            await asyncio.sleep(_REFRESH)
        if job.error is not None:
            raise _failed(job.error)

    def stop(self, visitor: str) -> None:
        """Stops a visitor's current request."""
        if (visit := self._current(visitor)) is not None:
            visit.stop()

    async def clear(self, visitor: str) -> None:
        """Stops a visitor's request, waits for its last update, and deletes the last answer."""
        if (visit := self._current(visitor)) is not None:
            visit.replace()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(visit.over.wait(), _PATIENCE)
        with self._lock:
            self._last.pop(visitor, None)

    def _current(self, visitor: str) -> Visit | None:
        """The current request of a visitor."""
        with self._lock:
            return self._visits.get(visitor)

    def remember(self, visitor: str, answer: Answer, method: str) -> None:
        """Keeps a visitor's last answer, for its trees."""
        with self._lock:
            self._last[visitor] = answer, method
            self._last.move_to_end(visitor)
            if len(self._last) > _KEPT_ANSWERS:
                self._last.popitem(last=False)

    def inherit(self, visitor: str, before: str) -> bool:
        """Copies the last answer of another key, which only the visitor's browser knows, to this
        visitor. Returns whether there is one. Other tabs may still use the old key."""
        last = self.last(before) if before else None
        if last is not None:
            self.remember(visitor, *last)
        return last is not None

    def last(self, visitor: str) -> tuple[Answer, str] | None:
        """Returns a visitor's last answer and its method."""
        with self._lock:
            return self._last.get(visitor)


def _failed(error: BaseException) -> UserError:
    return UserError(f"the answer failed: {type(error).__name__}; try other settings")
