"""Who runs, who waits, and who holds which pages.

Requests are read and run in the order in which they came. When pages run out, the one that came
last gives up its pages and its slot and waits at the front of the queue; what it has written is
read again later. The first one can always go on, since the pool is large enough for the longest
text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf

from dart_jax.engine.scheduling.pages import PagePool, page_key
from dart_jax.engine.scheduling.sequence import Sequence


class Scheduler:
    """Slots, pages and the queue. Not for several threads.

    Attributes:
      pools: the pages, of each group of devices.
      waiting: sequences without a slot, the next one first.
      reading: sequences that are being read, the oldest first.
      running: sequences that take part in steps, the oldest first.
      queries: prompt tokens that were looked up among known pages.
      hits: those of them that were found.
      preemptions: how often a running sequence had to wait again.
    """

    def __init__(self, slots: int, pools: SequenceOf[PagePool], max_rows: int):
        """Begins with free slots.

        Args:
          slots: of each group.
          pools: the pages of each group.
          max_rows: rows that one sequence can have in the caches.
        """
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

    @property
    def pages_free(self) -> int:
        """Pages that can be taken, of all groups."""
        return sum(pool.free for pool in self.pools)

    def group(self, sequence: Sequence) -> int:
        """The group of devices that has a sequence's slot."""
        assert sequence.slot is not None
        return sequence.slot // self._slots

    def begin_next(self, drafts: bool = False) -> Sequence | None:
        """Gives the next waiting sequence a slot and pages for its tokens so far, and begins to
        read it; None if there is none, or no room for it. `drafts`: whether the drafter will read
        it, too."""
        if not self.waiting:
            return None
        groups = sorted(range(len(self.pools)), key=lambda group: -len(self._free[group]))
        return next(filter(None, (self._begin(group, drafts) for group in groups)), None)

    def _begin(self, group: int, drafts: bool) -> Sequence | None:
        """Begins to read the next waiting sequence in a group, if that has room."""
        sequence, pool = self.waiting[0], self.pools[group]
        if not self._free[group]:
            return None
        pages, key = pool.find(sequence.tokens, drafted=drafts)
        taken = pool.take(self._pages_for(sequence.count) - len(pages))
        # A page for each of the others that may need one, so that the newcomer is not sent away at
        # once.
        others = sum(self.group(each) == group and self._grows(each) for each in self.running)
        if taken is None or pool.free < others:
            pool.release([*pages, *(taken or [])])
            return None
        self.waiting.popleft()
        sequence.pages = pages + taken
        sequence.known, sequence.key, sequence.drafts = len(pages), key, drafts
        sequence.read = len(pages) * pool.page
        sequence.drafted = sequence.read if drafts else 0
        sequence.slot = self._free[group].pop()
        self.queries += sequence.count
        self.hits += sequence.read
        self.reading.append(sequence)
        return sequence

    def end_reading(self, sequence: Sequence) -> None:
        """Lets a sequence that was read take part in steps."""
        self.reading.remove(sequence)
        self.running.append(sequence)

    def read_for_drafts(self, sequence: Sequence) -> None:
        """Lets a running sequence be read where the drafter has not read it."""
        self.running.remove(sequence)
        self.reading.append(sequence)
        sequence.drafts = True

    def know_pages(self, sequence: Sequence) -> None:
        """Lets others find the pages that a sequence has completed."""
        pool, tokens = self.pools[self.group(sequence)], sequence.tokens
        page, drafted = pool.page, sequence.has_drafts
        while (end := (sequence.known + 1) * page) <= sequence.read:
            sequence.key = page_key(sequence.key, tokens[end - page : end + 1])
            pool.know(sequence.pages[sequence.known], sequence.key, drafted=drafted)
            sequence.known += 1

    def has_room(self, rows: int) -> bool:
        """Whether there are pages for so many more rows of all running sequences."""
        missing = [0] * len(self.pools)
        for sequence in self.running:
            missing[self.group(sequence)] += self._more_pages(sequence, rows)
        return all(more <= pool.free for more, pool in zip(missing, self.pools, strict=True))

    def _more_pages(self, sequence: Sequence, rows: int) -> int:
        return max(self._pages_for(sequence.read + rows) - len(sequence.pages), 0)

    def _grows(self, sequence: Sequence) -> bool:
        """Whether a sequence may need more pages."""
        return len(sequence.pages) < self._pages_for(sequence.limit)

    def make_room(self, rows: int) -> None:
        """Gives every running sequence pages for so many more rows, the oldest first; some may
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
        sequence.forget()

    def _pages_for(self, rows: int) -> int:
        return -(-min(rows, self._max_rows) // self.pools[0].page)
