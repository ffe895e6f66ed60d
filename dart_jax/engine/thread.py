"""A thread with an engine, which decodes the requests of clients together."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Protocol

import jax
import numpy as np

from dart_jax.decoding.compilation import CompileTime, measure_compilation
from dart_jax.decoding.drafting import AnyDrafter
from dart_jax.decoding.options import Sampling
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.engine import Engine
from dart_jax.engine.request import Output, Request, SamplingMode
from dart_jax.engine.sequence import Sequence
from dart_jax.engine.statistics import Statistics
from dart_jax.errors import UserError
from dart_jax.grammar.matching import Grammars
from dart_jax.models.config import TargetConfig
from dart_jax.text.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

# Programs that are compiled for requests before all are dropped: on CPUs each takes some hundred
# memory mappings, and beyond the process's limit (vm.max_map_count) the compiler crashes.
_MOST_COMPILED = 100

# Seconds without a request after which the engine goes on compiling: a client that asks again soon
# would wait for the program that is being compiled.
_QUIET_SECONDS = 2.0

# Receives what each step gives a request, on the engine's thread, which it must not block.
OnOutput = Callable[[Output], object]


class ServedModel(Protocol):
    """Facts about a model that a request needs; a `DartModel` has them."""

    @property
    def target(self) -> TargetConfig:
        """The target's shapes."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's."""
        ...

    @property
    def eos(self) -> tuple[int, ...]:
        """All end-of-sequence ids."""
        ...

    @property
    def grammars(self) -> Grammars:
        """Grammars for the target's tokens."""
        ...


class DecodedModel(ServedModel, Protocol):
    """A model with its parameters, as a `DartModel`."""

    @property
    def drafter(self) -> AnyDrafter | None:
        """The drafting method's config."""
        ...

    @property
    def text_drafts(self) -> bool:
        """True if texts draft, too."""
        ...

    def engine(self, options: EngineConfig) -> Engine:
        """Returns an engine that decodes with the model."""
        ...


class QueueFull(UserError):
    """No request can be accepted now.

    Attributes:
      retry_after: seconds after which those that wait now should have been served, so that there
        is room for all that try again.
    """

    def __init__(self, config: EngineConfig, seconds: float = 1.0):
        """All places in a queue are taken, and requests have a slot for `seconds` on average."""
        super().__init__(f"{config.queue} requests are waiting; try again in a moment")
        self.retry_after = max(config.queue / config.slots, 1) * seconds


class EngineClosed(UserError):
    """The engine accepts no more requests."""


class EngineFailed(UserError):
    """The engine had to stop in the middle of a request, which was not at fault."""


class _Ticket:
    """See `Ticket`."""

    def __init__(self, thread: EngineThread, sequence: Sequence):
        self._thread, self._sequence = thread, sequence

    @property
    def begun(self) -> float | None:
        return self._sequence.begun

    def cancel(self) -> None:
        self._thread._cancel(self._sequence)


class Ticket(Protocol):
    """A request that was accepted."""

    @property
    def begun(self) -> float | None:
        """The time at which it first got a slot, in seconds of `time.monotonic`, or None before."""
        ...

    def cancel(self) -> None:
        """Ends it within a step, without waiting. At most one more output, which is under way,
        follows. Callable from any thread, and more than once."""
        ...


class AnyEngine(Protocol):
    """What serves requests: an `EngineThread`, or several of them on other machines.

    Attributes:
      config: its options, such as the number of requests it takes.
      max_length: maximum length of a prompt and its new tokens together.
    """

    config: EngineConfig
    max_length: int

    @property
    def model(self) -> ServedModel:
        """The model that is served."""
        ...

    def submit(self, request: Request, on_output: OnOutput) -> Ticket:
        """Accepts a request; see `EngineThread.submit`."""
        ...

    def statistics(self) -> Statistics:
        """Returns a snapshot."""
        ...

    def close(self) -> None:
        """Cancels all requests."""
        ...


class EngineThread:
    """Serves requests with one model.

    Attributes:
      model: the model.
      config: the options.
      max_length: maximum length of a prompt and its new tokens together.
    """

    def __init__(
        self,
        model: DecodedModel,
        config: EngineConfig = EngineConfig(),
        progress: Callable[[str], None] = lambda _: None,
        defaults: Sampling = Sampling(1.0),
    ):
        """Compiles the programs, and starts the thread. Raises UserError if the options do not fit
        the model.

        Args:
          model: the model.
          config: the options.
          progress: is told how far the compilation is.
          defaults: how requests sample that say nothing of it: such a text can be written first.
        """
        self.model, self.config = model, config
        self._engine = model.engine(config)
        self.max_length = self._engine.max_length
        mode = Request(np.zeros(1, np.int32), 1, defaults).mode
        self._warm_up = compile_programs(self._engine, config, mode)
        self._warm = False  # whether everything is compiled that the options name
        for message, enough in self._warm_up:
            progress(message)
            if enough and not config.compile_first:
                break
        self._compiled, self._compiled_idle, self._waited = CompileTime(), 0, 0.0
        self._compiles_at = 0.0  # in seconds of `time.monotonic`, unless requests come before
        self._kept_until = 0  # programs compiled for requests when they were last dropped
        self._changed = threading.Condition()
        self._news: deque[Sequence] = deque()  # that were accepted or cancelled
        # Requests that neither ended nor were cancelled, whether the thread has seen them or not,
        # the oldest first, and who listens.
        self._accepted: dict[Sequence, OnOutput] = {}
        self._closed = self._failed = False
        self._statistics = self._snapshot()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_output: OnOutput) -> Ticket:
        """Accepts a request, each of whose outputs is passed on. Callable from any thread.

        Raises:
          QueueFull: too many requests wait.
          EngineClosed: it accepts no more requests.
          UserError: the request does not fit the model.
        """
        sequence = self._engine.sequence_of(request)
        with self._changed:
            if self._failed:
                raise EngineClosed("the engine has failed; it must be started again")
            if self._closed:
                raise EngineClosed("the server is shutting down; try again later")
            if len(self._accepted) >= self.config.slots + self.config.queue:
                raise QueueFull(self.config, self._engine.seconds_in_slot)
            self._accepted[sequence] = on_output
            self._news.append(sequence)
            self._changed.notify_all()
        return _Ticket(self, sequence)

    def statistics(self) -> Statistics:
        """Returns a snapshot, at most a step old. Callable from any thread."""
        return self._statistics

    def close(self) -> None:
        """Cancels all requests and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _cancel(self, sequence: Sequence) -> None:
        with self._changed:
            # At once: its place is free for the next request.
            if self._accepted.pop(sequence, None) is None:
                return
            self._news.append(sequence)
            self._changed.notify_all()

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        try:
            with measure_compilation() as self._compiled:
                while self._take_news():
                    if self._engine.busy:
                        before = self._compiled.seconds
                        for sequence, output in self._engine.step():
                            self._give(sequence, output)
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
            came = [each.arrived for each in self._news if each in self._accepted]
        if came:
            self._waited += time.monotonic() - min(came)

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
        engine = self._engine
        while True:
            with self._changed:
                while not (self._closed or self._news or engine.busy or self._compiles_now):
                    rest = self._compiles_at - time.monotonic()
                    self._changed.wait(None if self._warm else rest)
                news = [(each, each in self._accepted) for each in self._news]
                self._news.clear()
                closed = self._closed
            for sequence, accepted in news:
                if accepted:
                    engine.add(sequence)
                else:
                    engine.cancel(sequence)
            for sequence in engine.sequences if closed else ():
                engine.cancel(sequence)
            if closed:
                return False
            if engine.busy or self._compiles_now:
                return True
            self._statistics = self._snapshot()

    def _give(self, sequence: Sequence, output: Output) -> None:
        """Passes an output on, unless nobody listens any more."""
        with self._changed:
            on_output = self._accepted.get(sequence)
        if on_output is None:
            return
        try:
            on_output(output)
        except Exception:
            _logger.exception("a listener failed")
            self._cancel(sequence)
        if output.last:
            with self._changed:
                self._accepted.pop(sequence, None)
                self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Ends all requests with an error; the engine is of no more use."""
        for sequence, output in self._engine.take_outputs():
            self._give(sequence, output)
        with self._changed:
            self._failed = True
            self._news.clear()
            lost = list(self._accepted)
        failure = EngineFailed(f"the engine failed: {type(error).__name__}")
        failure.__cause__ = error
        for sequence in lost:
            self._give(sequence, Output.without_tokens(error=failure))
        self._statistics = self._snapshot()

    def _snapshot(self) -> Statistics:
        return self._engine.statistics(
            accepted=sum(each in self._accepted for each in self._news.copy()),
            compilations=self._compiled_for_requests,
            compilation_seconds=self._waited,
            failed=self._failed,
        )


def compile_programs(
    engine: Engine, config: EngineConfig, mode: SamplingMode
) -> Iterator[tuple[str, bool]]:
    """Runs the programs that requests may run, one at a time, the most important ones first. No
    request may run during a part; between two they may.

    `mode`: how requests sample that say nothing of it.

    Yields:
      After every part, how much has been done, and whether a single text can be written.
    """
    runner, shapes = engine.runner, engine.runner.shapes
    if not config.modes:
        return

    def read(length: int, start: int, drafts: bool, scored: bool = False) -> None:
        pages = np.full((shapes.groups, shapes.pages_each), -1, np.int32)
        tokens = np.zeros((shapes.groups, length + 1), np.int32)
        starts, used = np.full(shapes.groups, start, np.int32), 1 if shapes.only_used else None
        runner.read_tokens(tokens, starts, pages, used, drafts=drafts, scored=scored)

    def burst(mode: SamplingMode, rows: int, width: int, size: int, **others: bool) -> None:
        runner.compile(runner.program(size, mode, **others), rows, width)

    drafts, one, narrow = runner.reads_drafts, shapes.rows[0], shapes.widths[0]
    size = engine.tree_sizes.choose(one, "greedy").size
    first: list[SamplingMode] = [each for each in config.modes if each in ("greedy", mode)]
    works = [
        partial(read, shapes.chunks[0], 0, drafts),
        partial(read, shapes.chunks[-1], 0, drafts),
    ]
    works += [partial(burst, each, one, narrow, size) for each in first]
    works += [partial(runner.compile_beginning, mode)]
    works += [partial(runner.copy, 0, 0)] * (not config.no_prefix_cache)
    enough = len(works)
    starts = (0, *(n * shapes.page for n in shapes.widths)) if shapes.bounded else (0,)
    reads = [*product(shapes.chunks, starts)]
    works += [partial(read, *read_, drafts) for read_ in reads]
    works += [partial(burst, each, one, narrow, size, masked=True) for each in first]
    works += [partial(runner.compile_beginning, each) for each in config.modes]
    works += [partial(read, *read_, False) for read_ in reads if drafts]
    # Those under a grammar last: fewer texts are.
    for masked, each, rows in product((False, True), config.modes, shapes.rows):
        for width in shapes.widths:
            every = partial(burst, each, rows, width, masked=masked)
            works += [partial(every, nodes) for nodes in shapes.sizes[rows]]
            if drafts and not shapes.fixed:
                works.append(partial(every, 0, follows=True))
    for drafted, read_ in product({drafts, False}, reads):
        works.append(partial(read, *read_, drafted, scored=True))
    for done, work in enumerate(works, 1):
        work()
        of = f"the {enough} programs needed first" if done <= enough else f"{len(works)} programs"
        yield f"compiled {done} of {of}", done >= enough
