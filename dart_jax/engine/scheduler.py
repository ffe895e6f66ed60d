"""Scheduling: the requests that run, those that wait, and the pages that each holds.

Requests begin in the order in which they came; but one that begins like another that is being read
lets others pass until it can have what that one has read. When pages run out, the one that came
last gives up its pages and its slot and waits at the front of the queue; what it has written is
read again later. The first one can always go on, since the pool is large enough for the longest
text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import numpy as np

from dart_jax.decoding.logits import TokenScores
from dart_jax.engine.pages import (
    EMPTY_HASH,
    SHARED_ROWS,
    PageHash,
    PagePool,
    hash_page,
    shared_rows,
)
from dart_jax.engine.request import Logprobs, OnUpdate, Request
from dart_jax.engine.rows import SamplingMode, mode_of
from dart_jax.grammar.after_thoughts import AfterThoughts
from dart_jax.grammar.matching import Grammars, Matcher
from dart_jax.grammar.min_tokens import MinTokens


class Sequence:
    """A request, its tokens so far, and what it holds while it runs.

    Attributes:
      request: what was asked for.
      on_update: where its tokens go.
      mode: how its steps sample.
      matcher: says what may follow the text; None if anything may.
      scores: of the prompt's tokens that were read, if they are reported, in parts.
      arrived: when it was accepted, in seconds of `time.monotonic`.
      limit: tokens of prompt and text, at most.
      num_tokens: tokens so far, of prompt and text. The last one, the root, is in no cache.
      num_computed_tokens: rows in the target's cache, at most `num_tokens - 1`.
      num_drafter_tokens: those of them that the drafter has read, too.
      slot: its slot; None while it waits.
      pages: those it holds, in order.
      copy: the page to be copied before it is read, and the one of its own to copy it to.
      waits_for: another sequence, and how many rows of that must have been read before this one
        begins; None if it need not wait.
      num_cached_pages: how many of them other sequences can find by their hashes.
      page_hash: the hash of the last of these.
      drafter_reads: whether the drafter reads what it has not read before the next step.
      draft_row: its row in the result of the last step, if that has a draft for it.
      cancelled: whether nobody wants it any more.
      ended: whether it is over and holds nothing.
      begun: when it first got a slot; None before.
      cached: tokens that were in the caches then.
    """

    def __init__(
        self,
        request: Request,
        max_length: int,
        on_update: OnUpdate,
        grammars: Grammars | None = None,
    ):
        """See the attributes.

        Args:
          request: the request.
          max_length: of prompt and new tokens together; above the prompt's.
          on_update: receives the updates.
          grammars: of the target, if the request has a grammar or `min_new_tokens`.
        """
        self.request, self.on_update = request, on_update
        self.matcher: Matcher | MinTokens | AfterThoughts | None = None
        if request.min_new_tokens and request.stop_ids:
            assert grammars is not None
            least, ids = request.min_new_tokens, request.stop_ids
            self.matcher = MinTokens(least, ids, grammars.vocab_size)
        if request.grammar is not None:
            assert grammars is not None
            self.matcher = grammars.start(request.grammar)
            if request.thoughts is not None:
                self.matcher = AfterThoughts(self.matcher, request.thoughts, grammars)
        self.mode: SamplingMode = mode_of(request)
        self.scores: list[Logprobs] = []
        self.arrived = time.monotonic()
        self.prompt_length = len(request.tokens)
        self.limit = min(self.prompt_length + request.max_new_tokens, max_length)
        self._tokens = np.empty(self.limit, np.int32)
        self._tokens[: self.prompt_length] = request.tokens
        self.num_tokens = self.prompt_length
        self.num_computed_tokens = self.num_drafter_tokens = 0
        self.slot: int | None = None
        self.pages: list[int] = []
        self.copy: tuple[int, int] | None = None
        self.waits_for: tuple[Sequence, int] | None = None
        self.num_cached_pages = 0
        self.page_hash: PageHash = EMPTY_HASH
        self.drafter_reads = False
        self.draft_row: int | None = None
        self.cancelled = self.ended = False
        self.begun: float | None = None
        self.cached = 0

    @property
    def tokens(self) -> np.ndarray:
        """Those of prompt and text so far, int32 [count]."""
        return self._tokens[: self.num_tokens]

    @property
    def text(self) -> np.ndarray:
        """The new tokens so far, int32 [count - prompt_length]."""
        return self._tokens[self.prompt_length : self.num_tokens]

    @property
    def remaining(self) -> int:
        """Tokens that may still follow."""
        return self.limit - self.num_tokens

    @property
    def num_unread_tokens(self) -> int:
        """Tokens that must be read before its next step."""
        return self.num_tokens - 1 - self.next_position

    @property
    def next_position(self) -> int:
        """The position from which it must be read."""
        return self.num_drafter_tokens if self.drafter_reads else self.num_computed_tokens

    @property
    def drafter_is_current(self) -> bool:
        """True if the drafter has read all that the target has."""
        return self.num_drafter_tokens == self.num_computed_tokens

    @property
    def needs_scores(self) -> bool:
        """True if the tokens that are read next must be scored."""
        scored = sum(len(part.own) for part in self.scores)
        return self.request.prompt_logprobs is not None and scored < self.prompt_length - 1

    def add_scores(self, scores: TokenScores, rows: int) -> None:
        """Adds the scores of the next tokens: of so many rows, as far as there are any."""
        assert self.request.prompt_logprobs is not None
        count = min(rows, self.num_unread_tokens)
        # Copies: views would keep all rows of a program alive.
        own = TokenScores(*(x if x is None else x[:count].copy() for x in scores))
        self.scores.append(Logprobs.of(own, self.request.prompt_logprobs))

    @property
    def prompt_logprobs(self) -> Logprobs | None:
        """All scores of the prompt; None if they are not reported."""
        most = self.request.prompt_logprobs
        if most is None:
            return None
        if not self.scores:  # of a single token
            none, top = np.zeros(0, np.float32), np.zeros((0, most), np.float32)
            return Logprobs(none, top.astype(np.int32), top, none.astype(np.int32))
        return Logprobs(*map(np.concatenate, zip(*self.scores, strict=True)))

    def advance(self, rows: int) -> None:
        """Notes that so many more tokens were read, as far as there are any."""
        end = min(self.next_position + rows, self.num_tokens - 1)
        self.num_computed_tokens = max(self.num_computed_tokens, end)
        if self.drafter_reads:
            self.num_drafter_tokens = end

    def append(self, tokens: np.ndarray, *, drafted: bool) -> None:
        """Adds new tokens; all but the last one are in the caches, and the drafter's too if it read
        them and those before."""
        follows = drafted and self.drafter_is_current
        self._tokens[self.num_tokens : self.num_tokens + len(tokens)] = tokens
        self.num_tokens += len(tokens)
        self.num_computed_tokens = self.num_tokens - 1
        if follows:
            self.num_drafter_tokens = self.num_computed_tokens

    def reset(self) -> None:
        """Begins anew with nothing in the caches, but with the tokens so far."""
        if self.needs_scores:
            self.scores = []
        self.num_computed_tokens = self.num_drafter_tokens = 0
        self.slot, self.draft_row, self.copy = None, None, None
        self.pages, self.num_cached_pages, self.page_hash, self.drafter_reads = (
            [],
            0,
            EMPTY_HASH,
            False,
        )


class Scheduler:
    """Slots, pages and the queue. Not for several threads.

    Attributes:
      pools: the pages, of each group of devices.
      waiting: sequences without a slot, the next one first.
      reading: sequences that are being read, the oldest first.
      running: sequences that take part in steps, the oldest first.
      queries: prompt tokens that were looked up among cached pages.
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

    def group(self, sequence: Sequence) -> int:
        """The group of devices that has a sequence's slot."""
        assert sequence.slot is not None
        return sequence.slot // self._slots

    def begin_next(
        self, drafts: Callable[[Sequence], bool] = lambda sequence: False
    ) -> Sequence | None:
        """Gives the next waiting sequence a slot and pages for its tokens so far, and begins to
        read it; None if there is none, or no room for it. `drafts`: whether the drafter will read
        a sequence, too."""
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
        """Lets others find what a sequence has in its pages."""
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
        """True if there are pages for so many more rows of all running sequences."""
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
        sequence.reset()

    def _pages_for(self, rows: int) -> int:
        return -(-min(rows, self._max_rows) // self.pools[0].page)
