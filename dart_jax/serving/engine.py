"""The engine: one thread that serves the requests of a model."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import jax
import numpy as np

from dart_jax.decoding.compilation import CompileTime, measure_compilation
from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.request import OnUpdate, Request
from dart_jax.engine.rows import mode_of
from dart_jax.engine.scheduler import Sequence
from dart_jax.engine.statistics import Statistics
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.interface import QueueFull
from dart_jax.serving.setup import compile_programs, runner_of

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

    def __init__(self, engine: Engine, sequence: Sequence):
        self._engine, self._sequence = engine, sequence

    @property
    def begun(self) -> float | None:
        """The time at which it first got a slot, in seconds of `time.monotonic`; None before."""
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
        defaults: Sampling = Sampling(1.0),
    ):
        """Compiles the programs, and starts the thread.

        Args:
          model: the model.
          config: the options.
          progress: is told how far the compilation is.
          defaults: how requests sample that say nothing of it: such a text can be written first.

        Raises:
          UserError: the options do not fit the model.
        """
        self.model, self.config = model, config
        self._runner = runner_of(model, config, self._forget)
        self.max_length = self._runner.batch.shapes.max_length
        mode = mode_of(Request(np.zeros(1, np.int32), 1, defaults))
        self._warm_up = compile_programs(self._runner, config, mode)
        self._warm = False  # whether everything is compiled that the options name
        for done in self._warm_up:
            progress(str(done))
            if done.enough and not config.compile_first:
                break
        self._compiled, self._compiled_idle, self._waited = CompileTime(), 0, 0.0
        self._compiles_at = 0.0  # in seconds of `time.monotonic`, unless requests come before
        self._kept_until = 0  # programs compiled for requests when they were last dropped
        self._changed = threading.Condition()
        self._inbox: deque[Sequence] = deque()
        self._cancelled: deque[Sequence] = deque()
        # Requests that neither ended nor were cancelled, whether the thread has seen them or not;
        # the oldest first.
        self._accepted: dict[Sequence, None] = {}
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
        request.check_fits(self.max_length, self._runner.batch.vocab_size)
        sequence = Sequence(request, self.max_length, on_update, self.model.grammars)
        with self._changed:
            if self._failed:
                raise EngineClosed("the engine has failed; it must be started again")
            if not self._accepting:
                raise EngineClosed("the server is shutting down; try again later")
            if len(self._accepted) >= self.config.slots + self.config.queue:
                raise QueueFull(self.config, self._runner.counters.seconds_in_slot)
            self._accepted[sequence] = None
            self._inbox.append(sequence)
            self._changed.notify_all()
        return Ticket(self, sequence)

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
            self._accepted.pop(sequence, None)  # at once: its place is free for the next request
            self._cancelled.append(sequence)
            self._changed.notify_all()

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        try:
            with measure_compilation() as self._compiled:
                while self._take_news():
                    if self._runner.busy:
                        before = self._compiled.seconds
                        self._runner.turn(self._clock)
                        self._waited += self._compiled.seconds - before
                        self._compiles_at = time.monotonic() + _QUIET_SECONDS
                    else:
                        self._compile_next()
                    self._drop_programs()
                    self._statistics = self._snapshot()
        except BaseException as error:
            _logger.exception("the engine failed")
            self._fail(error)

    def _compile_next(self) -> None:
        """Compiles a program, for which requests that come meanwhile wait."""
        before = self._compiled.programs
        self._warm = next(self._warm_up, None) is None
        self._compiled_idle += self._compiled.programs - before
        if self._warm and self._compiled_idle:
            _logger.info("all programs are compiled")
        with self._changed:
            came = [sequence.arrived for sequence in self._inbox]
        if came:
            self._waited += time.monotonic() - min(came)

    def _clock(self) -> float:
        """Seconds, of which those are not counted in which programs were compiled."""
        return time.perf_counter() - self._compiled.seconds

    @property
    def _compiles_now(self) -> bool:
        """True if there is something to compile, and no request has come for a while."""
        return not self._warm and time.monotonic() >= self._compiles_at

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

    def _take_news(self) -> bool:
        """Takes in new and cancelled requests, and waits until there is something to do; returns
        whether to go on."""
        runner = self._runner
        while True:
            with self._changed:
                while not (
                    self._closed
                    or self._inbox
                    or self._cancelled
                    or runner.busy
                    or self._compiles_now
                ):
                    rest = self._compiles_at - time.monotonic()
                    self._changed.wait(None if self._warm else rest)
                new, cancelled = list(self._inbox), list(self._cancelled)
                self._inbox.clear()
                self._cancelled.clear()
                closed = self._closed
            runner.scheduler.waiting.extend(new)
            for sequence in (*cancelled, *(runner.requests if closed else ())):
                runner.end(sequence)
            if closed:
                return False
            if runner.busy or self._compiles_now:
                return True
            self._statistics = self._snapshot()

    def _forget(self, sequence: Sequence) -> None:
        """A request has ended."""
        with self._changed:
            self._accepted.pop(sequence, None)
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Ends all requests with an error; the engine is of no more use."""
        with self._changed:
            self._failed = True
            self._inbox.clear()
            lost = list(self._accepted)
        for sequence in lost:
            failure = EngineFailed(f"the engine failed: {type(error).__name__}")
            failure.__cause__ = error
            self._runner.give(sequence, failure)
            sequence.ended = True
        with self._changed:
            self._accepted.clear()
            self._changed.notify_all()
        self._statistics = self._snapshot()

    def _snapshot(self) -> Statistics:
        return self._runner.statistics(
            accepted=len(self._inbox),
            compilations=self._compiled_for_requests,
            compilation_seconds=self._waited,
            failed=self._failed,
        )
