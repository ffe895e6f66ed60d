"""The engine: one thread that reads prompts and takes steps for all requests.

In every turn it reads at most a chunk of the next prompts, and then takes a step of all requests
that have been read. A request that arrives during a step is therefore read right after it, and a
long prompt does not hold up the others for more than a chunk at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

import numpy as np

from dart_jax.decoding.compilation import CompileTime, measure_compilation
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.serving.batch import Batch
from dart_jax.serving.config import ServingConfig, highest
from dart_jax.serving.pages import PagePool
from dart_jax.serving.request import OnUpdate, QueueFull, Request, Update
from dart_jax.serving.scheduler import Scheduler
from dart_jax.serving.sequence import Sequence
from dart_jax.serving.statistics import Statistics
from dart_jax.serving.tallies import Tallies
from dart_jax.serving.tree_size import TreeSizes
from dart_jax.serving.warmup import warm_up

_logger = logging.getLogger(__name__)

# Tokens that are read in the time in which one is written, about.
_WORTH = 4


class EngineClosed(UserError):
    """The engine accepts no more requests."""


class EngineFailed(UserError):
    """The engine had to stop in the middle of a request, which was not at fault."""


class Ticket:
    """A request that was accepted."""

    def __init__(self, engine: Engine, sequence: Sequence):
        self._engine, self._sequence = engine, sequence

    @property
    def begun(self) -> float | None:
        """When it got a slot for the first time, in seconds of `time.monotonic`; None before."""
        return self._sequence.begun

    def cancel(self) -> None:
        """Ends it within a step, without waiting. At most one more update, which is under way,
        follows. Callable from any thread, and more than once."""
        self._engine._cancel(self._sequence)


class Engine:
    """Serves requests with one model.

    Attributes:
      model: the model.
      config: the options.
      max_length: maximum length of a prompt and its new tokens together.
    """

    def __init__(
        self,
        model: DartModel,
        config: ServingConfig = ServingConfig(),
        progress: Callable[[str], None] = lambda _: None,
    ):
        """Compiles the programs, and starts the thread.

        Args:
          model: the model.
          config: the options.
          progress: is told how far the compilation is.

        Raises:
          UserError: the options do not fit the model.
        """
        self.model, self.config = model, config
        self._batch = Batch(model, config)
        shapes = self._batch.shapes
        self.max_length = shapes.max_length
        pool = PagePool(self._batch.page_count, config.page, reuse=config.prefix_cache)
        self._scheduler = Scheduler(config.slots, pool, shapes.pages_each * config.page)
        self._sizes = TreeSizes(shapes.sizes, shapes.fixed)
        self._drafts = shapes.most_nodes > 0  # whether drafting pays
        self._drafted = 0  # nodes that the last step drafted for
        warm_up(self._batch, config, self._sizes, progress)
        self._compiled = CompileTime()
        self._tallies = Tallies()
        self._changed = threading.Condition()
        self._inbox: deque[Sequence] = deque()
        self._cancelled: deque[Sequence] = deque()
        self._accepted = 0  # requests that have not ended
        self._accepting = True
        self._closed = self._failed = False
        self._statistics = self._snapshot()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_update: OnUpdate) -> Ticket:
        """Accepts a request. Callable from any thread.

        Args:
          request: the request.
          on_update: called on the engine's thread, which it must not hold up, with each update, or
            with an exception if the request fails.

        Raises:
          QueueFull: too many requests wait.
          EngineClosed: it accepts no more requests.
          UserError: the request does not fit the model.
        """
        request.check_fits(self.max_length, self.model.target.vocab_size)
        sequence = Sequence(request, self.max_length, on_update)
        with self._changed:
            if not self._accepting or self._failed:
                raise EngineClosed("the server is shutting down; try again later")
            if self._accepted >= self.config.slots + self.config.queue:
                raise QueueFull(
                    f"{self.config.queue} requests are waiting; try again in a moment",
                    self._tallies.seconds_per_request(),
                )
            self._accepted += 1
            self._inbox.append(sequence)
            self._changed.notify_all()
        return Ticket(self, sequence)

    async def stream(self, request: Request) -> AsyncGenerator[Update, None]:
        """Serves a request for asyncio: yields its updates; closing the iterator cancels it.

        Raises:
          UserError: as `submit`, or the request failed.
        """
        loop, updates = asyncio.get_running_loop(), asyncio.Queue()

        def put(update: Update | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(updates.put_nowait, update)

        ticket = self.submit(request, put)
        try:
            while True:
                update = await updates.get()
                if isinstance(update, BaseException):
                    raise update
                yield update
                if update.finish is not None:
                    return
        finally:
            ticket.cancel()

    def statistics(self) -> Statistics:
        """A snapshot, at most a step old. Callable from any thread."""
        return self._statistics

    def drain(self, seconds: float) -> bool:
        """Accepts no more requests and waits for the accepted ones; returns whether all ended."""
        end = time.monotonic() + seconds
        with self._changed:
            self._accepting = False
            while self._accepted and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._accepted

    def close(self) -> None:
        """Cancels all requests and ends the thread."""
        with self._changed:
            self._accepting, self._closed = False, True
            self._changed.notify_all()
        self._thread.join()

    def _cancel(self, sequence: Sequence) -> None:
        with self._changed:
            if sequence.cancelled:
                return
            sequence.cancelled = True
            self._cancelled.append(sequence)
            self._changed.notify_all()

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        try:
            with measure_compilation() as self._compiled:
                while self._take_news():
                    self._step(alone=not self._read())
                    self._catch_up()
                    self._statistics = self._snapshot()
        except BaseException as error:
            _logger.exception("the engine failed")
            self._fail(error)

    def _take_news(self) -> bool:
        """Takes in new and cancelled requests, and waits until there is something to do; returns
        whether to go on."""
        scheduler = self._scheduler
        while True:
            with self._changed:
                while not (
                    self._closed
                    or self._inbox
                    or self._cancelled
                    or scheduler.active
                    or scheduler.waiting
                ):
                    self._changed.wait()
                new, cancelled = list(self._inbox), list(self._cancelled)
                self._inbox.clear()
                self._cancelled.clear()
                closed = self._closed
            scheduler.waiting.extend(new)
            for sequence in cancelled:
                self._end(sequence)
            if closed:
                for sequence in [*scheduler.active, *scheduler.waiting]:
                    self._end(sequence)
                return False
            if scheduler.active or scheduler.waiting:
                return True
            self._statistics = self._snapshot()

    def _read(self) -> bool:
        """Reads prompts: a chunk, or all that wait if nothing runs; returns whether there was
        something to read."""
        scheduler, most = self._scheduler, self._batch.shapes.chunks[-1]
        left = most
        while left > 0:
            sequence = scheduler.reading
            if sequence is None:
                sequence = scheduler.begin_next(self._drafts)
                if sequence is None:
                    return left < most
                self._batch.begin(sequence)
                self._tallies.begin(sequence)
            if sequence.unread:
                left -= self._batch.read(sequence)
                scheduler.know_pages(sequence)
            if not sequence.unread:
                scheduler.end_reading()
        return True

    def _step(self, *, alone: bool) -> None:
        """Takes a step of the running requests; `alone`: whether nothing was read just before it,
        so that its time is its own."""
        scheduler, shapes = self._scheduler, self._batch.shapes
        began = time.perf_counter()
        if not scheduler.running:
            return
        rows = shapes.rows_for(len(scheduler.running))
        level = highest(sequence.level for sequence in scheduler.running)
        size = drafted = self._sizes.choose(rows, level)
        self._drafts = size > 0
        if not any(sequence.draft is not None for sequence in scheduler.running):
            # Nothing is drafted yet; the largest trees' drafts serve smaller ones, too.
            size, drafted = 0, size and shapes.sizes[rows][-1]
        program = self._batch.program(size, drafted, level)
        # For a path of this tree, and what a small model writes while it drafts the next one.
        scheduler.make_room(program.verifying.max_depth + program.drafting.max_depth + 2)
        running = list(scheduler.running)
        if not running:
            return
        emitted = self._batch.step(running, rows, program)
        if size:
            trees = sum(each.drafted > 0 for each in emitted)
            ranks = np.concatenate([each.ranks for each in emitted])
            self._sizes.learn_accepted(level, min(size, self._drafted), ranks, trees)
        self._drafted = drafted
        self._tallies.step(size, emitted)
        for sequence, each in zip(running, emitted, strict=True):
            sequence.append(each.tokens)
            if each.tokens[-1] < 0:
                self._give(sequence, _not_numbers(sequence))
                self._end(sequence)
                continue
            scheduler.know_pages(sequence)
            finish = None
            if each.ended:
                stopped = int(each.tokens[-1]) in sequence.request.stop_ids
                finish = "stop" if stopped else "length"
            drafted_tokens = tuple((each.ranks > 0).tolist())
            update = Update(tuple(each.tokens.tolist()), drafted_tokens, finish, each.logprobs)
            self._give(sequence, update)
            if finish is not None:
                self._end(sequence)
        if alone and size == drafted:
            self._sizes.learn_step(rows, level, size, time.perf_counter() - began)

    def _catch_up(self) -> None:
        """Where drafting pays again, lets the oldest text that goes on without it be read anew, if
        enough of it is still to come."""
        scheduler = self._scheduler
        if not self._drafts or scheduler.reading is not None or scheduler.waiting:
            return
        for sequence in scheduler.running:
            if not sequence.drafts and _WORTH * sequence.remaining > sequence.count:
                scheduler.read_again(sequence)
                return

    def _give(self, sequence: Sequence, update: Update | BaseException) -> None:
        """Calls back, unless nobody listens any more."""
        if sequence.cancelled:
            return
        try:
            sequence.on_update(update)
        except Exception:
            _logger.exception("a listener failed")
            self._cancel(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Removes a request; nothing happens if it has ended already."""
        if sequence.ended:
            return
        sequence.ended = True
        self._scheduler.end(sequence)
        self._tallies.end()
        with self._changed:
            self._accepted -= 1
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Ends all requests with an error; the engine is of no more use."""
        with self._changed:
            self._failed = True
            lost = [*self._inbox, *self._scheduler.active, *self._scheduler.waiting]
            self._inbox.clear()
        for sequence in lost:
            failure = EngineFailed(f"the engine failed: {type(error).__name__}")
            failure.__cause__ = error
            self._give(sequence, failure)
            sequence.ended = True
        with self._changed:
            self._accepted = 0
            self._changed.notify_all()
        self._statistics = self._snapshot()

    def _snapshot(self) -> Statistics:
        scheduler = self._scheduler
        return self._tallies.statistics(
            running=len(scheduler.active),
            waiting=len(scheduler.waiting) + len(self._inbox),
            slots=self.config.slots,
            pages=scheduler.pool.size,
            pages_used=scheduler.pool.used,
            prefix_queries=scheduler.queries,
            prefix_hits=scheduler.hits,
            preemptions=scheduler.preemptions,
            compilations=self._compiled.programs,
            failed=self._failed,
        )


def _not_numbers(sequence: Sequence) -> UserError:
    return UserError(
        f"the target's logits are NaN at new token {len(sequence.text)} of a text; its weights "
        "give numbers that are too large or not numbers"
    )
