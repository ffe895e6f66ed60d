"""Who runs, who waits, and who holds which pages.

Requests are read and run in the order in which they came. When pages run out, the one that came
last gives up its pages and its slot and waits at the front of the queue; what it has written is
read again later. The first one can always go on, since the pool is large enough for the longest
text.
"""

from __future__ import annotations

from collections import deque

from dart_jax.serving.scheduling.pages import PagePool, page_key
from dart_jax.serving.scheduling.sequence import Sequence


class Scheduler:
    """Slots, pages and the queue. Not for several threads.

    Attributes:
      pool: the pages.
      waiting: sequences without a slot, the next one first.
      reading: the sequence whose prompt is being read.
      running: sequences that take part in steps, the oldest first.
      queries: prompt tokens that were looked up among known pages.
      hits: those of them that were found.
      preemptions: how often a running sequence had to wait again.
    """

    def __init__(self, slots: int, pool: PagePool, max_rows: int):
        """`max_rows`: rows that one sequence can have in the caches."""
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.reading: Sequence | None = None
        self.running: list[Sequence] = []
        self.queries = self.hits = self.preemptions = 0
        self._free_slots = list(range(slots - 1, -1, -1))
        self._max_rows = max_rows

    @property
    def active(self) -> list[Sequence]:
        """The sequences with a slot, the oldest first."""
        return [*self.running, *([self.reading] if self.reading else [])]

    def begin_next(self, drafts: bool = False) -> Sequence | None:
        """Gives the next waiting sequence a slot and pages for its tokens so far, and begins to
        read it; None if there is none, or no room for it. `drafts`: whether the drafter will read
        it, too."""
        assert self.reading is None
        if not self.waiting or not self._free_slots:
            return None
        sequence = self.waiting[0]
        pages, key = self.pool.find(sequence.tokens, drafted=drafts)
        found = len(pages)
        taken = self.pool.take(self._pages_for(sequence.count) - found)
        # A page for each of the others, so that the newcomer is not sent away at once.
        if taken is None or self.pool.free < len(self.running):
            self.pool.release([*pages, *(taken or [])])
            return None
        self.waiting.popleft()
        sequence.pages = pages + taken
        sequence.known, sequence.key, sequence.drafts = found, key, drafts
        sequence.read = found * self.pool.page
        sequence.slot = self._free_slots.pop()
        self.queries += sequence.count
        self.hits += sequence.read
        self.reading = sequence
        return sequence

    def end_reading(self) -> None:
        """Lets the sequence that was read take part in steps."""
        assert self.reading is not None
        self.running.append(self.reading)
        self.reading = None

    def know_pages(self, sequence: Sequence) -> None:
        """Lets others find the pages that a sequence has completed."""
        page, tokens = self.pool.page, sequence.tokens
        while (end := (sequence.known + 1) * page) <= sequence.read:
            sequence.key = page_key(sequence.key, tokens[end - page : end + 1])
            self.pool.know(sequence.pages[sequence.known], sequence.key, drafted=sequence.drafts)
            sequence.known += 1

    def missing(self, rows: int) -> int:
        """Returns how many pages the running sequences lack for so many more rows."""
        return sum(self._more_pages(sequence, rows) for sequence in self.running)

    def _more_pages(self, sequence: Sequence, rows: int) -> int:
        return max(self._pages_for(sequence.read + rows) - len(sequence.pages), 0)

    def make_room(self, rows: int) -> None:
        """Gives every running sequence pages for so many more rows, the oldest first; some may
        have to wait again."""
        for sequence in list(self.running):
            if sequence.slot is None:
                break  # as do all after it
            more = self._more_pages(sequence, rows)
            while sequence.slot is not None and more > self.pool.free:
                self._preempt(self.active[-1])
            if sequence.slot is not None:
                sequence.pages += self.pool.take(more) or []

    def read_again(self, sequence: Sequence) -> None:
        """Lets a running sequence wait to be read again, before all others."""
        self._give_up(sequence)
        self.waiting.appendleft(sequence)

    def end(self, sequence: Sequence) -> None:
        """Removes a sequence wherever it is, with all it holds."""
        if sequence.slot is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        self._give_up(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.read_again(sequence)
        self.preemptions += 1

    def _give_up(self, sequence: Sequence) -> None:
        """Takes slot and pages from a sequence."""
        if sequence is self.reading:
            self.reading = None
        else:
            self.running.remove(sequence)
        assert sequence.slot is not None
        self._free_slots.append(sequence.slot)
        self.pool.release(sequence.pages)
        sequence.forget()

    def _pages_for(self, rows: int) -> int:
        return -(-min(rows, self._max_rows) // self.pool.page)
