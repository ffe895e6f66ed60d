"""Serves visitors: turns a prompt and settings into a running answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence

from dart_jax.app.answer import Answer, Prompt, encode
from dart_jax.app.methods import Methods
from dart_jax.app.settings import LEAST, Settings
from dart_jax.engine.request import Request
from dart_jax.errors import UserError
from dart_jax.serving.config import ServingConfig, Warmup
from dart_jax.serving.engine import Engine, EngineFailed, Ticket
from dart_jax.serving.interface import QueueFull

# Interval at which a page is updated with new text, in seconds.
_REFRESH = 0.08

# How long Clear waits for a running answer to end, in seconds. Without a reader it would not end.
_PATIENCE = 5.0

# Number of last answers kept for their trees, also for pages that are reloaded.
_KEPT_ANSWERS = 64

COMPILING = "Compiling; takes some seconds, only the first time."


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An answer that is ready to start.

    Attributes:
      answer: the answer of one method.
      request: asks the engine for it.
    """

    answer: Answer
    request: Request


class Replaced(Exception):
    """The visitor started something else or cleared the page: the old answer is not shown."""


class Visit:
    """The current request of a visitor, who has at most one at a time."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.stopped = self.replaced = False
        self.over = asyncio.Event()  # no more updates are sent

    def stop(self) -> None:
        """Stops it, without waiting."""
        self.stopped = True
        for ticket in self.tickets:
            ticket.cancel()

    def replace(self) -> None:
        """Stops it in favour of something else."""
        self.replaced = True
        self.stop()


class Service:
    """One engine for all visitors, who are identified by a key and share nothing else.

    Attributes:
      methods: the methods to choose from.
      engine: decodes their answers.
      most: maximum new tokens of an answer.
      longest: maximum tokens of a prompt and its answer.
      chat: whether the target has a chat template; otherwise it continues texts.
    """

    def __init__(
        self,
        methods: Methods,
        *,
        most: int,
        longest: int,
        together: int = 8,
        waiting: int = 48,
        warmup: Warmup = "greedy",
    ):
        """Starts the engine.

        Args:
          methods: the methods to choose from.
          most: maximum new tokens of an answer.
          longest: maximum tokens of a prompt and its answer.
          together: maximum number of answers that each method writes at once.
          waiting: maximum number of answers that wait for one of these places.
          warmup: what is compiled while nobody is served; the rest is when it is needed, since
            programs take memory.

        Raises:
          UserError: the numbers do not fit the model, or each other.
        """
        self.methods = methods
        self.longest = min(longest, methods.base.target.max_length)
        if most < LEAST:
            raise UserError(f"--max-new-tokens must be at least {LEAST}, got {most}")
        if most >= self.longest:
            raise UserError(
                f"answers of {most} tokens do not fit into {self.longest}, prompt included; lower "
                "--max-new-tokens"
            )
        if together < 1 or waiting < 0:
            raise UserError(f"{together} visitors at once with {waiting} waiting serves nobody")
        self.most = most
        self.chat = bool(methods.base.tokenizer.chat_template)
        self.engine = Engine(
            {name: method.model for name, method in methods.items()},
            ServingConfig(slots=together, queue=waiting, max_length=self.longest, warmup=warmup),
            warm_up_idle=True,
        )
        self._visits: dict[str, Visit] = {}
        self._last: OrderedDict[str, tuple[Answer, str]] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Stops all work and waits until it has ended."""
        self.engine.close()

    @property
    def default(self) -> Settings:
        """The initial settings of the page."""
        return Settings.default(self.methods, self.most)

    def settings(self, values: object) -> Settings:
        """See `Settings.of`."""
        return Settings.of(values, self.methods, self.most)

    def prepare(self, prompt: Prompt, settings: Settings) -> Prepared:
        """Encodes a prompt; raises UserError if it is empty or too long."""
        method = self.methods[settings.method]
        model, limit = method.model, settings.max_new_tokens
        tokens = encode(model, prompt, self.longest - limit)
        search = self.engine.search(settings.method)
        answer = Answer(method.title, limit, model.tokenizer, tokens, model.eos, search)
        return Prepared(answer, settings.request(tokens, model.eos))

    async def serve(self, visitor: str, prepared: Sequence[Prepared]) -> AsyncGenerator[str, None]:
        """Generates the prepared answers; yields at every update a line that says what the visitor
        is waiting for, if anything.

        The visitor's previous request is stopped, and this one when its iterator is closed.

        Raises:
          UserError: too many visitors, or an answer failed.
          Replaced: the visitor started something else or cleared the page.
        """
        visit = Visit()
        with self._lock:
            before, self._visits[visitor] = self._visits.get(visitor), visit
        if before is not None:
            before.replace()
        try:
            async with contextlib.aclosing(self._run(visit, prepared)) as lines:
                async for line in lines:
                    if visit.replaced:
                        break
                    yield line
            if visit.replaced:
                raise Replaced
        finally:
            visit.stop()
            for one in prepared:
                one.answer.ended = True
            visit.over.set()
            with self._lock:
                if self._visits.get(visitor) is visit:
                    del self._visits[visitor]

    async def _run(self, visit: Visit, prepared: Sequence[Prepared]) -> AsyncGenerator[str, None]:
        """Passes the requests to the engine, and takes in what it gives."""
        answers = [one.answer for one in prepared]
        try:
            for one in prepared:
                visit.tickets.append(self.engine.submit(one.request, one.answer.receive))
        except QueueFull:
            config = self.engine.config
            raise UserError(
                f"all places are taken ({config.slots} at once, {config.queue} waiting); try again "
                "in a moment"
            ) from None
        shown = None
        while True:
            stopped = visit.stopped  # read first: what has come until then is shown
            try:
                for answer in answers:
                    answer.take_in()
            except EngineFailed as error:
                raise UserError(f"{error}; the app must be started again") from error
            line = _line(visit.tickets)
            now = [line, *(answer.tokens for answer in answers)]
            over = stopped or all(answer.ended for answer in answers)
            if over or now != shown:
                shown = now
                yield "" if over else line
            if over:
                return
            await asyncio.sleep(_REFRESH)

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


def _line(tickets: Sequence[Ticket]) -> str:
    """What the visitor is waiting for, if anything."""
    if any(ticket.compiling for ticket in tickets):
        return COMPILING
    places = [ahead for ticket in tickets if (ahead := ticket.ahead) is not None]
    return f"{max(places)} waiting ahead of you." if places else ""
