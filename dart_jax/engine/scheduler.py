"""Scheduling: the requests that run, those that wait, and the pages that each holds.

Requests begin in the order in which they came; but one that begins like another that is being read
lets others pass until it can have what that one has read. When pages run out, the one that came
last gives up its pages and its slot and waits at the front of the queue; what it has written is
read again later. The first one can always go on, since the pool is large enough for the longest
text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from dart_jax.engine.pages import SHARED_ROWS, PagePool, hash_page, shared_rows
from dart_jax.engine.sequence import Sequence


class Scheduler:
    """Slots, pages and the queue. Not for several threads.

    Attributes:
      pools: the pages, of each group of devices.
      waiting: sequences without a slot, the next one first.
      reading: sequences that are being read, the oldest first.
      running: sequences that take part in steps, the oldest first.
      queries: prompt tokens that were looked up among cached pages.
      hits: the ones that were found.
      preemptions: how often a running sequence had to wait again.
    """

    def __init__(self, slots: int, pools: SequenceOf[PagePool], max_rows: int):
        """Begins with free slots, as many for each group, for sequences of `max_rows` rows in the
        caches at most."""
        self.pools = pools
        self.waiting: deque[Sequence] = deque()
        self.reading: list[Sequence] = []
        self.running: list[Sequence] = []
        self.queries = self.hits = self.preemptions = 0
        self._slots = slots
        self._free = [
            list(range((group + 1) * slots - 1, group * slots - 1, -1))
            for group in range(len(pools))
        ]
        self._max_rows = max_rows

    @property
    def active(self) -> list[Sequence]:
        """The sequences with a slot, the oldest first."""
        return [*self.running, *self.reading]

    def group(self, sequence: Sequence) -> int:
        """Returns the group of devices that has a sequence's slot."""
        assert sequence.slot is not None
        return sequence.slot // self._slots

    def begin_next(
        self, drafts: Callable[[Sequence], bool] = lambda sequence: False
    ) -> Sequence | None:
        """Gives the next waiting sequence a slot and pages for its tokens so far, and begins to
        read it. Returns None if there is none, or no room for it. `drafts`: whether the drafter
        will read a sequence, too."""
        groups = [group for group, free in enumerate(self._free) if free]
        groups.sort(key=lambda group: -len(self._free[group]))
        for sequence in self.waiting if groups else ():
            free = [group for group in groups if not self._must_wait(sequence, group)]
            if free and any(self._begin(sequence, group, drafts(sequence)) for group in free):
                self.waiting.remove(sequence)
                return sequence
            if len(free) == len(groups):
                return None
        return None

    def _must_wait(self, sequence: Sequence, group: int) -> bool:
        """True while another sequence of a group is being read that begins alike: what they share
        is read once. A sequence waits for one other, so it is not put off for ever."""
        if not self.pools[group].reuse or sequence.needs_scores:
            return False
        if sequence.waits_for is None:
            for other in self.reading:
                if self.group(other) == group:
                    rows = shared_rows(sequence.tokens, other.tokens)
                    if rows - other.next_position >= SHARED_ROWS:
                        sequence.waits_for = other, rows
                        return True
            return False
        other, rows = sequence.waits_for
        being_read = other in self.reading and self.group(other) == group
        return being_read and other.next_position < rows

    def _begin(self, sequence: Sequence, group: int, drafts: bool) -> bool:
        """Begins to read a waiting sequence in a group, if that has room."""
        pool = self.pools[group]
        # What is found would not be read, and so not be scored.
        known = sequence.tokens[:0] if sequence.needs_scores else sequence.tokens
        found = pool.find(known, drafted=drafts)
        count = self._pages_for(sequence.num_tokens) - len(found.pages)
        # A page for each of the others that may need one, so that the newcomer is not sent away at
        # once.
        others = sum(self.group(each) == group and self._grows(each) for each in self.active)
        taken = pool.take(count) if count + others <= pool.free else None
        if taken is None:
            pool.release(found.pages)
            return False
        if found.source in taken:  # so nobody else needs it
            taken.remove(found.source)
            taken.insert(0, found.source)
        elif found.source is not None:
            sequence.copy = found.source, taken[0]
        sequence.pages, sequence.waits_for = found.pages + taken, None
        sequence.num_cached_pages, sequence.page_hash = len(found.pages), found.page_hash
        sequence.drafter_reads = drafts
        sequence.num_computed_tokens = len(found.pages) * pool.page + found.rows
        sequence.num_drafter_tokens = sequence.num_computed_tokens if drafts else 0
        sequence.slot = self._free[group].pop()
        self.queries += len(known)
        self.hits += sequence.num_computed_tokens
        self.reading.append(sequence)
        return True

    def end_reading(self, sequence: Sequence) -> None:
        """Lets a sequence that was read take part in steps."""
        self.reading.remove(sequence)
        self.running.append(sequence)

    def read_for_drafts(self, sequence: Sequence) -> None:
        """Lets a running sequence be read where the drafter has not read it."""
        self.running.remove(sequence)
        self.reading.append(sequence)
        sequence.drafter_reads = True

    def publish_pages(self, sequence: Sequence) -> None:
        """Publishes what a sequence has in its pages, so that others find it."""
        pool, tokens = self.pools[self.group(sequence)], sequence.tokens
        drafted = min(sequence.num_drafter_tokens, sequence.num_computed_tokens)
        while True:
            begin = sequence.num_cached_pages * pool.page
            rows = min(sequence.num_computed_tokens - begin, pool.page)
            if rows <= 0:
                return
            page, new = sequence.pages[sequence.num_cached_pages], tokens[begin : begin + rows + 1]
            by_drafter = min(max(drafted - begin, 0), rows)
            pool.note(page, sequence.page_hash, new, drafted=by_drafter)
            if rows < pool.page:
                return
            sequence.page_hash = hash_page(sequence.page_hash, new)
            pool.publish(page, sequence.page_hash, drafted=by_drafter == rows)
            sequence.num_cached_pages += 1

    def has_room(self, rows: int) -> bool:
        """True if there are pages for `rows` more rows of all running sequences."""
        missing = [0] * len(self.pools)
        for sequence in self.running:
            missing[self.group(sequence)] += self._more_pages(sequence, rows)
        return all(more <= pool.free for more, pool in zip(missing, self.pools, strict=True))

    def _more_pages(self, sequence: Sequence, rows: int) -> int:
        return max(self._pages_for(sequence.num_computed_tokens + rows) - len(sequence.pages), 0)

    def _grows(self, sequence: Sequence) -> bool:
        """True if a sequence may need more pages."""
        return len(sequence.pages) < self._pages_for(sequence.limit)

    def make_room(self, rows: int) -> None:
        """Gives every running sequence pages for `rows` more rows, the oldest first; some may
        have to wait again."""
        for sequence in list(self.running):
            if sequence.slot is None:
                continue
            group = self.group(sequence)
            pool, more = self.pools[group], self._more_pages(sequence, rows)
            while sequence.slot is not None and more > pool.free:
                self._preempt([each for each in self.active if self.group(each) == group][-1])
            if sequence.slot is not None:
                sequence.pages += pool.take(more) or []

    def end(self, sequence: Sequence) -> None:
        """Removes a sequence wherever it is, with all it holds."""
        if sequence.slot is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        self._give_up(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Lets a running sequence wait to be read again, before all others."""
        self._give_up(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _give_up(self, sequence: Sequence) -> None:
        """Takes slot and pages from a sequence."""
        (self.reading if sequence in self.reading else self.running).remove(sequence)
        assert sequence.slot is not None
        group = self.group(sequence)
        self._free[group].append(sequence.slot)
        self.pools[group].release(sequence.pages)
        sequence.reset()

    def _pages_for(self, rows: int) -> int:
        return -(-min(rows, self._max_rows) // self.pools[0].page)
