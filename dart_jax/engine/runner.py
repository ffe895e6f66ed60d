"""Runs the requests of one model: reads their prompts, and takes bursts of steps.

In every turn some of the next prompts are read, and then a burst of steps taken of all requests
that have been read. A request that arrives during a burst is therefore read right after it, and a
long prompt holds up the others by little at a time: beside running texts reading takes little more
time than a burst, and otherwise it takes the tokens of a chunk. In every other turn the prompt that
lacks the least is the first, in the others the oldest: short prompts do not wait for long ones, nor
those for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import numpy as np

from dart_jax.decoding.paying import Paying
from dart_jax.engine.batch import Batch, Models
from dart_jax.engine.lessons import Burst, Emitted
from dart_jax.engine.pages import PagePool
from dart_jax.engine.request import Logprobs, Update
from dart_jax.engine.rows import SamplingMode, highest
from dart_jax.engine.scheduler import Scheduler, Sequence
from dart_jax.engine.shapes import Shapes
from dart_jax.engine.statistics import Counters, Statistics
from dart_jax.engine.tree_size import PAUSES, TreeSizes
from dart_jax.errors import UserError
from dart_jax.models.sharding.mesh import first_of

_logger = logging.getLogger(__name__)

# Tokens that are read in the time in which one is written, about.
_READ_FASTER = 4

# Time in which prompts are read in a turn, in bursts, and the fewest tokens: a stream's gaps become
# two and a half times as long, and a prompt takes two to three times as long as alone.
_READING, _LEAST_READ = 1.5, 16


class _Turn(NamedTuple):
    """A burst to take.

    Attributes:
      rows: of each group of devices.
      mode: how it samples.
      size: nodes of the trees.
      steps: at most.
      follows: whether the drafter reads what plain decoding writes.
      masked: whether some texts must follow a grammar.
      paying: says which nodes of trees pay; None for all.
    """

    rows: int
    mode: SamplingMode
    size: int
    steps: int
    follows: bool
    masked: bool
    paying: Paying[np.ndarray] | None


class Runner:
    """Runs one model's requests, with slots and pages of their own. Not for several threads.

    Attributes:
      batch: the device's side.
      scheduler: the requests that have not ended.
      sizes: chooses the sizes of trees.
      counters: counts.
    """

    def __init__(
        self,
        models: Models,
        shapes: Shapes,
        sizes: TreeSizes,
        on_end: Callable[[Sequence], None] = lambda sequence: None,
        *,
        pages: int | None = None,
        reuse: bool = True,
        burst_seconds: float | None = None,
    ):
        """Allocates what the requests need.

        Args:
          models: what decodes.
          shapes: what programs are compiled for.
          sizes: chooses the sizes of trees.
          on_end: is told which requests have ended.
          pages: of each group of devices; None for as many as the longest texts in all slots need.
          reuse: keep the pages of past texts for requests that begin alike.
          burst_seconds: of a burst, about, if steps have been timed; None for no limit.
        """
        slots = shapes.slots // shapes.groups
        pages = pages or slots * shapes.pages_each
        self.batch = Batch(models, shapes, pages)
        pools = [PagePool(pages, shapes.page, reuse=reuse) for _ in range(shapes.groups)]
        self.scheduler = Scheduler(slots, pools, shapes.pages_each * shapes.page)
        self.sizes = sizes
        self.counters = Counters()
        self._on_end, self._mesh = on_end, models.config.execution.devices.mesh
        self._burst_seconds = burst_seconds
        self._step_seconds: dict[tuple[int, SamplingMode, int], float] = {}
        self._last_burst: float | None = None  # seconds
        self._row_seconds: float | None = None  # of reading, see `Shapes.chunk_rows`
        self._shortest_first = False

    @property
    def busy(self) -> bool:
        """True while there is something to do."""
        scheduler = self.scheduler
        return bool(scheduler.running or scheduler.reading or scheduler.waiting)

    @property
    def requests(self) -> list[Sequence]:
        """All that have not ended."""
        return [*self.scheduler.active, *self.scheduler.waiting]

    def turn(self, clock: Callable[[], float], limit: int | None = None) -> None:
        """Reads and takes some steps.

        Args:
          clock: gives seconds, and stands still while programs are compiled.
          limit: of the steps; None for as many as programs take.
        """
        read = self.read(clock)
        self.burst(clock, limit, timed=not read)  # otherwise a step also waits for what was read
        self.read_for_drafts()

    def read(self, clock: Callable[[], float]) -> bool:
        """Reads prompts, as much as a turn may; returns whether the device may still be reading.
        `clock`: see `turn`."""
        scheduler, shapes = self.scheduler, self.batch.shapes
        times = self._last_burst is not None and (scheduler.running or self._row_seconds is None)
        left, rows, began = self._tokens_of_turn(), 0, clock()
        self._shortest_first = not self._shortest_first
        while True:
            while self._begin_next():
                pass
            if left <= 0 or not scheduler.reading:
                break
            first = scheduler.reading[0]
            if self._shortest_first:
                first = min(scheduler.reading, key=lambda sequence: sequence.num_unread_tokens)
            length = min(shapes.chunk_for(first.num_unread_tokens), shapes.longest_chunk(left))
            together = self._like(first, length, left)
            several = max(map(len, self._by_group(together))) > 1
            each = shapes.prompts_for(length) if several else 1
            places = self._places(together, each)
            count = self.batch.read(together, places, each, length, left) + shapes.chunk_rows
            left, rows = left - count, rows + count
            for sequence in together:
                scheduler.publish_pages(sequence)
                if not sequence.num_unread_tokens:
                    self._end_reading(sequence)
        if rows and times:
            self.batch.wait()
            seconds = first_of(self._mesh, clock() - began)
            assert seconds is not None
            self._row_seconds = seconds / rows
        return rows > 0 and not times

    def _end_reading(self, sequence: Sequence) -> None:
        """Lets a request take part in steps, or ends it if it asks for no text."""
        scores = sequence.prompt_logprobs
        if scores is not None and np.isnan(scores.own).any():
            self.give(sequence, _not_numbers("in a prompt"))
            self.end(sequence)
        elif sequence.remaining:
            self.scheduler.end_reading(sequence)
        else:
            self.give(sequence, Update((), (), "length", prompt_logprobs=scores))
            self.end(sequence)

    def _tokens_of_turn(self) -> int:
        """Tokens that are read in a turn."""
        shapes, seconds = self.batch.shapes, self._last_burst
        most = shapes.chunks[-1]
        if not self.scheduler.running or seconds is None:
            return most
        rows = 0
        if self._row_seconds is not None:
            rows = int(_READING * seconds / self._row_seconds) - shapes.chunk_rows
        return min(max(rows, _LEAST_READ), most)

    def _like(self, first: Sequence, length: int, left: int) -> list[Sequence]:
        """The sequences to read beside the first: as many tokens of each, at most, all with or all
        without the drafter, and all with or all without scores; one of each group if no more than
        so many tokens may be read."""
        scheduler, shapes = self.scheduler, self.batch.shapes
        most = shapes.prompts_for(length)
        if most * length > left:
            most = 1
        counts, together = [0] * shapes.groups, [first]
        counts[scheduler.group(first)] = 1
        for sequence in scheduler.reading:
            group = scheduler.group(sequence)
            alike = (
                sequence.drafter_reads == first.drafter_reads
                and sequence.needs_scores == first.needs_scores
                and shapes.chunk_for(sequence.num_unread_tokens) <= length
            )
            if sequence is not first and alike and counts[group] < most:
                counts[group] += 1
                together.append(sequence)
        return together

    def _by_group(self, sequences: SequenceOf[Sequence]) -> list[list[Sequence]]:
        groups: list[list[Sequence]] = [[] for _ in self.scheduler.pools]
        for sequence in sequences:
            groups[self.scheduler.group(sequence)].append(sequence)
        return groups

    def _places(self, sequences: SequenceOf[Sequence], rows: int) -> list[int]:
        """The rows of sequences in a program with so many for each group."""
        places = {
            sequence: group * rows + n
            for group, each in enumerate(self._by_group(sequences))
            for n, sequence in enumerate(each)
        }
        return [places[sequence] for sequence in sequences]

    def _begin_next(self) -> bool:
        """Begins to read the next waiting request; False if there is none, or no room for it."""
        scheduler = self.scheduler
        sequence = scheduler.begin_next(self._wants_drafts)
        if sequence is None:
            return False
        self.batch.begin(sequence)
        if sequence.begun is None:
            sequence.begun, sequence.cached = time.monotonic(), sequence.num_computed_tokens
            self.counters.begin(sequence.prompt_length)
        if not sequence.num_unread_tokens:
            self._end_reading(sequence)
        return True

    def _wants_drafts(self, sequence: Sequence) -> bool:
        """True if a request should be drafted for."""
        if not sequence.remaining:
            return False
        shapes = self.batch.shapes
        running = max(map(len, self._by_group(self.scheduler.active))) + 1
        rows = shapes.rows_for(min(running, shapes.rows[-1]))
        return self.sizes.drafts(rows, sequence.mode)

    def burst(
        self, clock: Callable[[], float], limit: int | None = None, *, timed: bool = True
    ) -> list[tuple[Sequence, Emitted]]:
        """Takes some steps of the running requests.

        Args:
          clock: see `turn`.
          limit: see `turn`.
          timed: whether the time tells what a step costs.

        Returns:
          What the requests got.
        """
        scheduler = self.scheduler
        if not scheduler.running:
            return []
        turn = self._plan(limit)
        program = self.batch.program(turn.size, turn.mode, follows=turn.follows, masked=turn.masked)
        path = program.config.max_depth + 1
        scheduler.make_room(turn.steps * path + path)
        running = list(scheduler.running)
        if not running:
            return []
        waits = scheduler.waiting or scheduler.reading
        began, began_by_wall = clock(), time.perf_counter()
        burst = self.batch.burst(
            running,
            self._places(running, turn.rows),
            turn.rows,
            program,
            turn.steps,
            least=len(running) if waits else self.batch.shapes.fewer_rows(turn.rows) + 1,
            paying=turn.paying,
        )
        seconds = clock() - began
        # A program that was compiled is slower at first.
        timed = timed and time.perf_counter() - began_by_wall < seconds + 1e-4
        emitted = burst.emitted
        pairs = list(zip(running, emitted, strict=True))
        steps = max(each.steps for each in emitted)
        self._learn(turn, burst, steps, seconds if timed else None)
        if timed:
            self._step_seconds[turn.rows, turn.mode, turn.size] = seconds / steps
        self.counters.burst([(e.ranks, e.trees, e.nodes) for e in emitted])
        for sequence, each in pairs:
            self._take(sequence, each)
        return pairs

    def _plan(self, limit: int | None) -> _Turn:
        """Decides the next burst: one step where a request reports what is verified, and no more
        than there are pages and time for."""
        scheduler, shapes = self.scheduler, self.batch.shapes
        running = scheduler.running
        rows = shapes.rows_for(max(map(len, self._by_group(running))))
        mode = highest(sequence.mode for sequence in running)
        state = self.sizes.choose(rows, mode)
        reads = self.batch.reads_drafts
        drafted = not reads or any(sequence.drafter_is_current for sequence in running)
        size = state.size if drafted else 0
        follows = drafted and not size and state.left <= PAUSES[0]
        masked = any(sequence.matcher is not None for sequence in running)
        program = self.batch.program(size, mode, masked=masked)
        path, steps = program.config.max_depth + 1, min(limit or program.steps, program.steps)
        steps = max(min(steps, state.left), 1)
        if any(sequence.request.drafts for sequence in running):
            steps = 1
        if self._burst_seconds is not None:
            seconds = self._step_seconds.get((rows, mode, size), self._burst_seconds)
            steps = min(steps, max(int(self._burst_seconds / seconds), 1))
        while steps > 1 and not scheduler.has_room(steps * path + path):
            steps //= 2
        return _Turn(rows, mode, size, steps, follows, masked, state.paying if size else None)

    def _learn(self, turn: _Turn, burst: Burst, steps: int, seconds: float | None) -> None:
        """Learns what a burst's trees gave and cost, and how long it takes."""
        seconds = first_of(self._mesh, seconds)  # the processes that decode together choose alike
        if seconds is not None:
            self._last_burst = seconds / steps * turn.steps
        times = None if seconds is None else burst.times
        self.sizes.learn(turn.rows, turn.mode, turn.size, steps, burst.lessons, seconds, times)

    def _take(self, sequence: Sequence, each: Emitted) -> None:
        """Passes on what a burst gave a request."""
        if each.tokens[-1] < 0:
            where = f"at new token {len(sequence.text)} of a text"
            self.give(sequence, _not_numbers(where))
            self.end(sequence)
            return
        if sequence.matcher is not None:
            if sequence.matcher.error is not None:
                self.give(sequence, sequence.matcher.error)
                self.end(sequence)
                return
            if sequence.matcher.done:
                sequence.matcher = None
        self.scheduler.publish_pages(sequence)
        finish = None
        if each.ended:
            stopped = int(each.tokens[-1]) in sequence.request.stop_ids
            finish = "stop" if stopped else "length"
        logprobs, most = None, sequence.request.logprobs
        if most is not None and each.scores is not None:
            logprobs = Logprobs.of(each.scores, most)
        first = len(sequence.text) == len(each.tokens)
        update = Update(
            tuple(each.tokens.tolist()),
            tuple(each.ranks.tolist()),
            finish,
            logprobs,
            sequence.prompt_logprobs if first else None,
            sequence.cached if first else 0,
            each.draft,
        )
        if not self.give(sequence, update) or finish is not None:
            self.end(sequence)

    def read_for_drafts(self) -> None:
        """Lets the drafter read the oldest text that goes on without drafts, where these pay again
        and enough of the text is still to come."""
        scheduler = self.scheduler
        if scheduler.reading or scheduler.waiting or not self.batch.reads_drafts:
            return
        for sequence in scheduler.running:
            if not sequence.drafter_is_current and self._wants_drafts(sequence):
                missing = sequence.num_computed_tokens - sequence.num_drafter_tokens
                if _READ_FASTER * sequence.remaining > missing:
                    scheduler.read_for_drafts(sequence)
                    return

    def give(self, sequence: Sequence, update: Update | BaseException) -> bool:
        """Calls back, unless nobody listens any more; returns whether anybody does."""
        if sequence.cancelled:
            return False
        try:
            sequence.on_update(update)
        except Exception:
            _logger.exception("a listener failed")
            sequence.cancelled = True
        return not sequence.cancelled

    def end(self, sequence: Sequence) -> None:
        """Removes a request; nothing happens if it has ended already."""
        if sequence.ended:
            return
        sequence.ended = True
        self.scheduler.end(sequence)
        if sequence.begun is not None:
            self.counters.end(time.monotonic() - sequence.begun)
        self._on_end(sequence)

    def statistics(self, accepted: int = 0, **others: Any) -> Statistics:
        """A snapshot.

        Args:
          accepted: requests of the engine that are not here yet.
          others: fields of the snapshot that the engine counts.
        """
        scheduler = self.scheduler
        return self.counters.statistics(
            running=len(scheduler.active),
            waiting=len(scheduler.waiting) + accepted,
            pages=sum(pool.size for pool in scheduler.pools),
            pages_used=sum(pool.used for pool in scheduler.pools),
            kv_bytes=self.batch.kv_bytes,
            kv_tokens=sum(pool.size * pool.page for pool in scheduler.pools),
            prefix_queries=scheduler.queries,
            prefix_hits=scheduler.hits,
            preemptions=scheduler.preemptions,
            **others,
        )


def _not_numbers(where: str) -> UserError:
    return UserError(
        f"the target's logits are NaN {where}; its weights, or a logits processor, give numbers "
        "that are too large or not numbers"
    )
