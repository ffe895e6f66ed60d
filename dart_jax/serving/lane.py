"""What the engine's thread does for the requests of one model.

In every turn it reads at most a chunk of the next prompts, and then takes a burst of steps of all
requests that have been read. A request that arrives during a burst is therefore read right after
it, and a long prompt does not hold up the others for more than a chunk at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.serving.batch import Batch, Emitted
from dart_jax.serving.config import Level, ServingConfig, highest
from dart_jax.serving.request import Update
from dart_jax.serving.scheduling.pages import PagePool
from dart_jax.serving.scheduling.scheduler import Scheduler
from dart_jax.serving.scheduling.sequence import Sequence
from dart_jax.serving.statistics import Statistics, Tallies
from dart_jax.serving.tree_size import TreeSizes
from dart_jax.serving.warmup import warm_up

_logger = logging.getLogger(__name__)

# Tokens that are read in the time in which one is written, about.
_WORTH = 4


class Lane:
    """Serves one model's requests, with slots and pages of their own. For the engine's thread only.

    Attributes:
      model: the model.
      batch: the device's side.
      scheduler: the requests that have not ended.
      sizes: chooses the sizes of trees.
      tallies: counts.
      accepted: those of them that were not cancelled, and requests that the thread has not seen
        yet, the oldest first. The engine's lock guards it.
      seconds: time that its turns took, by which lanes share the device (see `Engine`).
    """

    def __init__(
        self,
        model: DartModel,
        config: ServingConfig,
        on_end: Callable[[Lane, Sequence], None],
        share: int = 1,
    ):
        """Allocates what the requests need.

        Args:
          model: the model.
          config: the options.
          on_end: is told which requests have ended.
          share: number of lanes among which the memory is divided.

        Raises:
          UserError: the options do not fit the model.
        """
        self.model = model
        self.batch = Batch(model, config, share)
        shapes = self.batch.shapes
        pool = PagePool(self.batch.page_count, config.page, reuse=config.prefix_cache)
        self.scheduler = Scheduler(config.slots, pool, shapes.pages_each * config.page)
        self.sizes = TreeSizes(shapes.sizes, shapes.fixed)
        self.tallies = Tallies()
        self.accepted: dict[Sequence, None] = {}
        self.seconds = 0.0
        self._config, self._on_end = config, on_end
        self._drafts = shapes.most_nodes > 0  # whether drafting pays

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""
        scheduler = self.scheduler
        return bool(scheduler.running or scheduler.reading or scheduler.waiting)

    @property
    def requests(self) -> list[Sequence]:
        """All that have not ended."""
        return [*self.scheduler.active, *self.scheduler.waiting]

    def warm_up(self) -> Iterator[str]:
        """Compiles programs and times them, a part per item, which says what has been done. No
        request may run meanwhile; between two parts they may."""
        parts = warm_up(self.batch, self._config, self.sizes)
        while True:
            self.scheduler.pool.forget()  # it writes into all pages
            try:
                yield next(parts)
            except StopIteration:
                return

    def turn(self, clock: Callable[[], float]) -> None:
        """Reads and takes some steps; `clock` gives seconds, and stands still while programs are
        compiled."""
        began = clock()
        read = self._read()
        taken = self._burst(began, clock)
        if taken is not None and not read:  # otherwise a step also waits for what was read
            *kind, steps = taken
            self.sizes.learn_step(*kind, (clock() - began) / steps)
        if self.scheduler.reading is not None:
            self.scheduler.reading.seconds += clock() - began
        self._catch_up()
        self.seconds += clock() - began

    def _read(self) -> bool:
        """Reads prompts: a chunk, or all that wait if nothing runs; returns whether it did."""
        scheduler, most = self.scheduler, self.batch.shapes.chunks[-1]
        left = most
        while left > 0:
            sequence = scheduler.reading
            if sequence is None:
                sequence = self._begin_next()
                if sequence is None:
                    break
            if sequence.unread:
                left -= self.batch.read(sequence)
                scheduler.know_pages(sequence)
            if not sequence.unread:
                scheduler.end_reading()
        return left < most

    def _begin_next(self) -> Sequence | None:
        """Begins to read the next waiting request; None if there is none, or no room for it."""
        scheduler = self.scheduler
        drafts = bool(scheduler.waiting) and self._wants_drafts(scheduler.waiting[0])
        sequence = scheduler.begin_next(drafts)
        if sequence is not None:
            self.batch.begin(sequence)
            if sequence.begun is None:
                sequence.begun = time.monotonic()
                self.tallies.begin(sequence.prompt_length)
        return sequence

    def _wants_drafts(self, sequence: Sequence) -> bool:
        """Whether a request is to be drafted for."""
        nodes = sequence.request.tree_nodes
        if nodes is None:
            return self._drafts
        return nodes > 0 and self.batch.shapes.most_nodes > 0

    def _burst(
        self, began: float, clock: Callable[[], float]
    ) -> tuple[int, Level, int, int] | None:
        """Takes some steps of the running requests, in a turn that began at a time; returns their
        rows, level, size and number if that is what the trees' sizes were chosen for."""
        scheduler, shapes = self.scheduler, self.batch.shapes
        if not scheduler.running:
            return None
        rows = shapes.rows_for(len(scheduler.running))
        level = highest(sequence.level for sequence in scheduler.running)
        chosen, asked = self._choose_sizes(rows, level)
        size = max(chosen, shapes.nodes_for(asked))
        program = self.batch.program(size, level)
        # Of a step: its path, and what a small model writes while it drafts the next one.
        path = program.config.max_depth + 1
        limit = self._limit(path)
        scheduler.make_room(limit * path + path)
        running = list(scheduler.running)
        if not running:
            return None
        nodes = None
        if any(sequence.request.tree_nodes is not None for sequence in running):
            own = (sequence.request.tree_nodes for sequence in running)
            nodes = [chosen if asked is None else asked for asked in own]
        emitted = self.batch.burst(
            running,
            rows,
            program,
            limit,
            until_one_ends=bool(scheduler.waiting or scheduler.reading),
            nodes=nodes,
        )
        seconds = clock() - began
        if size:
            self._learn(running, emitted, level, chosen)
        steps = max(each.steps for each in emitted)
        self.tallies.burst(size, steps, [(e.ranks, e.trees, e.nodes) for e in emitted])
        for sequence, each in zip(running, emitted, strict=True):
            sequence.seconds += seconds
            self._take(sequence, each)
        return (rows, level, size, steps) if size == chosen else None

    def _limit(self, path: int) -> int:
        """Steps of the next burst, at most: one where a request reports what is verified, and no
        more than there are pages for."""
        scheduler, limit = self.scheduler, self.batch.shapes.steps
        if any(sequence.request.drafts for sequence in scheduler.running):
            return 1
        while limit > 1 and scheduler.missing(limit * path + path) > scheduler.pool.free:
            limit //= 2
        return limit

    def _choose_sizes(self, rows: int, level: Level) -> tuple[int, int]:
        """Nodes of the next step's trees: as many as pay, for requests that do not ask for a
        number, and the most that others ask for; 0 if there are no such requests."""
        asked = {sequence.request.tree_nodes for sequence in self.scheduler.running}
        chosen = 0
        if None in asked:
            chosen = self.sizes.choose(rows, level)
            self._drafts = chosen > 0
        most = max((nodes for nodes in asked if nodes is not None), default=0)
        return chosen, most if self.batch.shapes.most_nodes else 0

    def _learn(
        self, running: list[Sequence], emitted: list[Emitted], level: Level, chosen: int
    ) -> None:
        """Learns from the trees whose size was chosen."""
        own = [
            each
            for sequence, each in zip(running, emitted, strict=True)
            if sequence.request.tree_nodes is None
        ]
        if own and chosen:
            trees, steps = sum(each.trees for each in own), sum(each.steps for each in own)
            ranks = np.concatenate([each.ranks for each in own])
            self.sizes.learn_accepted(level, chosen, ranks, trees, steps)

    def _take(self, sequence: Sequence, each: Emitted) -> None:
        """Adds what a step gave a request, and passes it on."""
        sequence.append(each.tokens)
        if each.tokens[-1] < 0:
            self.give(sequence, _not_numbers(sequence))
            self.end(sequence)
            return
        self.scheduler.know_pages(sequence)
        finish = None
        if each.ended:
            stopped = int(each.tokens[-1]) in sequence.request.stop_ids
            finish = "stop" if stopped else "length"
        update = Update(
            tuple(each.tokens.tolist()),
            tuple((each.ranks > 0).tolist()),
            finish,
            each.logprobs,
            sequence.seconds,
            each.draft,
        )
        if not self.give(sequence, update) or finish is not None:
            self.end(sequence)

    def _catch_up(self) -> None:
        """Where drafting pays again, lets the oldest text that goes on without it be read anew, if
        enough of it is still to come."""
        scheduler = self.scheduler
        if scheduler.reading is not None or scheduler.waiting:
            return
        for sequence in scheduler.running:
            missing = not sequence.drafts and self._wants_drafts(sequence)
            if missing and _WORTH * sequence.remaining > sequence.count:
                scheduler.read_again(sequence)
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
        self.tallies.end()
        self._on_end(self, sequence)

    def statistics(self, accepted: int = 0, **others: Any) -> Statistics:
        """A snapshot, with what the engine counts: requests that no lane has yet, and others."""
        scheduler = self.scheduler
        return self.tallies.statistics(
            running=len(scheduler.active),
            waiting=len(scheduler.waiting) + accepted,
            slots=self._config.slots,
            pages=scheduler.pool.size,
            pages_used=scheduler.pool.used,
            prefix_queries=scheduler.queries,
            prefix_hits=scheduler.hits,
            preemptions=scheduler.preemptions,
            **others,
        )


def _not_numbers(sequence: Sequence) -> UserError:
    return UserError(
        f"the target's logits are NaN at new token {len(sequence.text)} of a text; its weights "
        "give numbers that are too large or not numbers"
    )
