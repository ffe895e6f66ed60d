"""The engine: one thread that serves the requests of one or several models.

Each model has a `Runner`, with slots and pages of its own. In every turn the engine calls the one
that has used the device least, among those with requests: so they share its time
equally, whatever their steps cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from itertools import islice

import jax

from dart_jax.decoding.compilation import CompileTime, measure_compilation
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.request import OnUpdate, Request, Update
from dart_jax.engine.runner import Runner
from dart_jax.engine.scheduler import Sequence
from dart_jax.engine.statistics import Statistics, add
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.interface import QueueFull
from dart_jax.serving.setup import FIRST_PROGRAMS, compile_programs, runner_of, search_of

_logger = logging.getLogger(__name__)

# Programs that are compiled for requests before all are dropped: on CPUs each takes some hundred
# memory mappings, and beyond the process's limit (vm.max_map_count) the compiler crashes.
_MOST_COMPILED = 100

# Seconds without a request after which the engine goes on compiling: a client that asks again soon
# would wait for the program that is being compiled.
_QUIET_SECONDS = 2.0


class EngineClosed(UserError):
    """The engine accepts no more requests."""


class EngineFailed(UserError):
    """The engine had to stop in the middle of a request, which was not at fault."""


class Ticket:
    """A request that was accepted."""

    def __init__(self, engine: Engine, runner: Runner, sequence: Sequence):
        self._engine, self._runner, self._sequence = engine, runner, sequence

    @property
    def begun(self) -> float | None:
        """When it got a slot for the first time, in seconds of `time.monotonic`; None before."""
        return self._sequence.begun

    @property
    def ahead(self) -> int | None:
        """Number of requests that wait before it; None once it has begun."""
        return self._engine._ahead(self._runner, self._sequence)

    @property
    def compiling(self) -> bool:
        """True while it waits for a program that is compiled, for itself or others."""
        return not self._sequence.ended and self._engine.compiling

    def cancel(self) -> None:
        """Ends it within a step, without waiting. At most one more update, which is under way,
        follows. Callable from any thread, and more than once."""
        self._engine._cancel(self._runner, self._sequence)


class Engine:
    """Serves requests with one model, or with several that share a target.

    Attributes:
      model: the model; the first one of several.
      config: the options.
      max_length: maximum length of a prompt and its new tokens together.
    """

    def __init__(
        self,
        models: DartModel | Mapping[str, DartModel],
        config: ServingConfig = ServingConfig(),
        progress: Callable[[str], None] = lambda _: None,
        *,
        warm_up_idle: bool = False,
    ):
        """Compiles the programs, and starts the thread.

        Args:
          models: the model; or several by name, which requests call a method. Each has as many
            slots, and as many requests may wait for it, as the options say; they divide the memory.
          config: the options.
          progress: is told how far the compilation is.
          warm_up_idle: accept requests at once, and compile everything in the moments in which
            there are none. What a request needs before is compiled while it waits.

        Raises:
          UserError: the options do not fit the models.
        """
        if isinstance(models, DartModel):
            models = {"default": models}
        self.config = config
        self._runners = {
            name: runner_of(model, config, self._forget, len(models))
            for name, model in models.items()
        }
        self._models = dict(models)
        self.model = next(iter(models.values()))
        self.max_length = next(iter(self._runners.values())).batch.shapes.max_length
        self._warm_ups = deque(
            (runner, compile_programs(runner, config)) for runner in self._runners.values()
        )
        if not warm_up_idle:
            for _, parts in self._warm_ups:
                for message in islice(parts, None if config.compile_first else FIRST_PROGRAMS):
                    progress(message)
        self._compiled, self._compiled_idle = CompileTime(), 0
        self._compiles_at = 0.0  # in seconds of `time.monotonic`, unless requests come before
        self._kept_until = 0  # programs compiled for requests when they were last dropped
        self._changed = threading.Condition()
        self._inbox: deque[tuple[Runner, Sequence]] = deque()
        self._cancelled: deque[tuple[Runner, Sequence]] = deque()
        self._accepting = True
        self._closed = self._failed = False
        self._statistics = self._snapshot()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def compiling(self) -> bool:
        """True while a program is compiled, for which all requests wait."""
        return any(runner.batch.compiling for runner in self._runners.values())

    @property
    def warm(self) -> bool:
        """True once everything is compiled that the options name."""
        return not self._warm_ups

    def search(self, method: str | None = None) -> SearchConfig:
        """The parameters of a method's tree search; raises UserError if there is no such method."""
        self._runner(method)
        return search_of(self._models[method] if method else self.model, self.config)

    def submit(self, request: Request, on_update: OnUpdate) -> Ticket:
        """Accepts a request. Callable from any thread.

        Args:
          request: the request.
          on_update: called on the engine's thread, which it must not hold up, with each update, or
            with an exception if the request fails.

        Raises:
          QueueFull: too many requests wait.
          EngineClosed: it accepts no more requests.
          UserError: the request does not fit the model, or there is no such method.
        """
        runner = self._runner(request.method)
        request.check_fits(self.max_length, runner.batch.vocab_size)
        sequence = Sequence(request, self.max_length, on_update)
        with self._changed:
            if self._failed:
                raise EngineClosed("the engine has failed; it must be started again")
            if not self._accepting:
                raise EngineClosed("the server is shutting down; try again later")
            if len(runner.accepted) >= self.config.slots + self.config.queue:
                raise QueueFull(
                    f"{self.config.queue} requests are waiting; try again in a moment",
                    runner.counters.seconds_per_request(),
                )
            runner.accepted[sequence] = None
            self._inbox.append((runner, sequence))
            self._changed.notify_all()
        return Ticket(self, runner, sequence)

    def _runner(self, method: str | None) -> Runner:
        if method is None:
            return next(iter(self._runners.values()))
        if method not in self._runners:
            names = ", ".join(self._runners)
            raise UserError(f"there is no method {method!r}; choose one of {names}")
        return self._runners[method]

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
            while self._any_accepted and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._any_accepted

    def close(self) -> None:
        """Cancels all requests and ends the thread."""
        with self._changed:
            self._accepting, self._closed = False, True
            self._changed.notify_all()
        self._thread.join()

    @property
    def _any_accepted(self) -> bool:
        return any(runner.accepted for runner in self._runners.values())

    def _ahead(self, runner: Runner, sequence: Sequence) -> int | None:
        with self._changed:
            if sequence.begun is not None or sequence not in runner.accepted:
                return None
            waiting = (each for each in runner.accepted if each.begun is None)
            return next(place for place, each in enumerate(waiting) if each is sequence)

    def _cancel(self, runner: Runner, sequence: Sequence) -> None:
        with self._changed:
            if sequence.cancelled:
                return
            sequence.cancelled = True
            runner.accepted.pop(sequence, None)  # at once: its place is free for the next request
            self._cancelled.append((runner, sequence))
            self._changed.notify_all()

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        try:
            with measure_compilation() as self._compiled:
                while self._take_news():
                    busy = [runner for runner in self._runners.values() if runner.busy]
                    if busy:
                        min(busy, key=lambda runner: runner.seconds).turn(self._clock)
                        self._compiles_at = time.monotonic() + _QUIET_SECONDS
                    else:
                        self._warm_up()
                    self._drop_programs()
                    self._statistics = self._snapshot()
        except BaseException as error:
            _logger.exception("the engine failed")
            self._fail(error)

    def _clock(self) -> float:
        """Seconds, of which those are not counted in which programs were compiled."""
        return time.perf_counter() - self._compiled.seconds

    def _warm_up(self) -> None:
        """Takes a part of a runner's warm-up; the next one will be of another runner."""
        runner, parts = self._warm_ups.popleft()
        before = self._compiled.programs
        if next(parts, None) is not None:
            self._warm_ups.append((runner, parts))
        self._compiled_idle += self._compiled.programs - before

    @property
    def _compiles_now(self) -> bool:
        """True if there is something to compile, and no request has come for a while."""
        return bool(self._warm_ups) and time.monotonic() >= self._compiles_at

    @property
    def _compiled_for_requests(self) -> int:
        """Programs that were compiled since the start, except by the warm-up in idle moments."""
        return self._compiled.programs - self._compiled_idle

    def _drop_programs(self) -> None:
        """Drops all programs if too many were compiled for requests; those that are needed again
        come from the cache on disk."""
        compiled = self._compiled_for_requests
        if compiled - self._kept_until > _MOST_COMPILED:
            self._kept_until = compiled
            jax.clear_caches()
            for runner in self._runners.values():
                runner.batch.forget_programs()

    def _take_news(self) -> bool:
        """Takes in new and cancelled requests, and waits until there is something to do; returns
        whether to go on."""
        runners = self._runners.values()
        while True:
            with self._changed:
                while not (
                    self._closed
                    or self._inbox
                    or self._cancelled
                    or any(runner.busy for runner in runners)
                    or self._compiles_now
                ):
                    rest = self._compiles_at - time.monotonic()
                    self._changed.wait(rest if self._warm_ups else None)
                new, cancelled = list(self._inbox), list(self._cancelled)
                self._inbox.clear()
                self._cancelled.clear()
                closed = self._closed
            for runner, sequence in new:
                self._add(runner, sequence)
            for runner, sequence in cancelled:
                runner.end(sequence)
            if closed:
                for runner in runners:
                    for sequence in runner.requests:
                        runner.end(sequence)
                return False
            if any(runner.busy for runner in runners) or self._compiles_now:
                return True
            self._statistics = self._snapshot()

    def _add(self, runner: Runner, sequence: Sequence) -> None:
        """Passes a request to its runner. One that was idle has as much claim to the device as the
        others: it neither makes up for its idleness nor waits for what it used before."""
        if not runner.busy:
            others = (other.seconds for other in self._runners.values() if other.busy)
            runner.seconds = min(others, default=runner.seconds)
        runner.scheduler.waiting.append(sequence)

    def _forget(self, runner: Runner, sequence: Sequence) -> None:
        """A request has ended."""
        with self._changed:
            runner.accepted.pop(sequence, None)
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Ends all requests with an error; the engine is of no more use."""
        with self._changed:
            self._failed = True
            self._inbox.clear()
            lost = [(runner, each) for runner in self._runners.values() for each in runner.accepted]
        for runner, sequence in lost:
            failure = EngineFailed(f"the engine failed: {type(error).__name__}")
            failure.__cause__ = error
            runner.give(sequence, failure)
            sequence.ended = True
        with self._changed:
            for runner in self._runners.values():
                runner.accepted.clear()
            self._changed.notify_all()
        self._statistics = self._snapshot()

    def _snapshot(self) -> Statistics:
        first, *others = self._runners.values()
        counts = first.statistics(
            accepted=len(self._inbox),
            compilations=self._compiled_for_requests,
            failed=self._failed,
        )
        return functools.reduce(add, (runner.statistics(replicas=0) for runner in others), counts)
