"""Pages of a group of devices: who holds them, and which texts begin as others did."""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

# A hash of all tokens up to the end of a page.
PageHash = bytes

EMPTY_HASH: PageHash = b""


def hash_page(before: PageHash, tokens: np.ndarray) -> PageHash:
    """Returns the hash of a page, given that of the page before and int32 [page + 1]: its tokens,
    and the next one."""
    return hashlib.blake2b(before + tokens.tobytes(), digest_size=16).digest()


# Rows that several texts share and that are worth a copy, which takes a CPU about as long as
# reading two to eight rows, or the wait until they have been read.
SHARED_ROWS = 8

# Pages after the same beginning that are compared with a text, at most.
_MOST_COMPARED = 32


class Found(NamedTuple):
    """The longest cached beginning of a text.

    Attributes:
      pages: complete ones.
      page_hash: the hash of the last one.
      source: a page that begins with the rows that follow, if there are enough.
      rows: how many.
    """

    pages: list[int]
    page_hash: PageHash
    source: int | None
    rows: int


class _Contents(NamedTuple):
    """Contents of a page, complete or not.

    Attributes:
      before: the hash of the page before.
      tokens: int32 [rows + 1], its rows' tokens and the next one.
      drafted: rows that the drafter has written, too.
    """

    before: PageHash
    tokens: np.ndarray
    drafted: int


def shared_rows(one: np.ndarray, other: np.ndarray) -> int:
    """Returns how many rows two texts, int32 [n], share: one for each equal token, and the next
    one, too, because the drafter's row joins the feature of its own token with the next token."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    same = int(differs.argmax()) if differs.any() else count
    return max(same - 1, 0)


class PagePool:
    """Counts who holds each page. Pages that nobody holds keep their contents until they are needed
    for something else, the ones that were used least recently first.

    A page holds the keys and values of as many tokens, in the target's pool and in the drafter's. A
    complete page of a text can serve every text that begins alike (see `shared_rows`): it is found
    by a hash of all tokens up to its end, and the one after that. The first rows of a page,
    complete or not, can be copied for a text that goes on otherwise: the latest pages after a
    beginning are compared with it. What only the target has written serves only texts that are not
    drafted for.

    Not for several threads.

    Attributes:
      size: number of pages.
      page: rows of a page.
      reuse: whether pages are found again by their tokens.
    """

    def __init__(self, size: int, page: int, *, reuse: bool = True):
        """Creates a pool of free pages."""
        self.size, self.page, self.reuse = size, page, reuse
        self._empty = list(range(size))  # a heap: the lowest are written first, and again
        self._holders = [0] * size
        # Hashes, and whether the drafter has written the page, too.
        self._hashes: dict[int, tuple[PageHash, bool]] = {}
        self._by_hash: dict[tuple[PageHash, bool], int] = {}
        self._contents: dict[int, _Contents] = {}
        # The pages with contents, by the hash of the one before; the next to be forgotten first.
        self._after: dict[PageHash, OrderedDict[int, None]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # may be found, and held by nobody

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.size - self.free

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        return len(self._empty) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """Takes pages, whose contents are undefined. Returns None and takes none if there are too
        few."""
        if count > self.free:
            return None
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._empty:
            page = heapq.heappop(self._empty)
        else:
            page, _ = self._idle.popitem(last=False)
            if page in self._hashes:
                del self._by_hash[self._hashes.pop(page)]
            self._forget(page)
        self._holders[page] = 1
        return page

    def release(self, pages: Iterable[int]) -> None:
        """Gives up pages that were taken or found."""
        # The last ones first: a page is useless without those before it.
        for page in reversed(list(pages)):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._hashes or page in self._contents:
                self._idle[page] = None
            else:
                heapq.heappush(self._empty, page)

    def find(self, tokens: np.ndarray, *, drafted: bool) -> Found:
        """Finds the longest cached beginning of a text, int32 [n], and holds its complete pages.
        The source of a copy is not held, but of those that nobody holds it is the last one that
        `take` takes.

        Args:
          tokens: of the text.
          drafted: whether the drafter must have written it, too.
        """
        pages, page_hash = [], EMPTY_HASH
        while self.reuse and len(tokens) > (len(pages) + 1) * self.page:
            begin = len(pages) * self.page
            longer = hash_page(page_hash, tokens[begin : begin + self.page + 1])
            page = self._by_hash.get((longer, True))
            if page is None and not drafted:
                page = self._by_hash.get((longer, False))
            if page is None:
                break
            if not self._holders[page]:
                del self._idle[page]
            self._holders[page] += 1
            pages.append(page)
            page_hash = longer
        rest = tokens[len(pages) * self.page :]
        source, rows = self._most_alike(page_hash, rest, drafted)
        return Found(pages, page_hash, source, rows)

    def _most_alike(
        self, before: PageHash, tokens: np.ndarray, drafted: bool
    ) -> tuple[int | None, int]:
        """Returns the page that shares most rows with the tokens after a beginning, and how
        many."""
        best, most = None, SHARED_ROWS - 1
        after = self._after.get(before, OrderedDict())
        for page in reversed(after):
            contents = self._contents[page]
            rows = shared_rows(contents.tokens, tokens)
            if drafted:
                rows = min(rows, contents.drafted)
            if rows > most:
                best, most = page, rows
        if best is None:
            return None, 0
        after.move_to_end(best)
        if best in self._idle:
            self._idle.move_to_end(best)
        return best, most

    def publish(self, page: int, page_hash: PageHash, *, drafted: bool) -> None:
        """Lets a complete page that is held be found by its hash, unless another one is already;
        `drafted`: whether the drafter has written it, too."""
        if not self.reuse:
            return
        if (page_hash, drafted) in self._by_hash:
            self._forget(page)  # the other one has the same
        else:
            self._by_hash[page_hash, drafted] = page
            self._hashes[page] = page_hash, drafted

    def note(self, page: int, before: PageHash, tokens: np.ndarray, *, drafted: int) -> None:
        """Lets the rows of a page that is held be copied.

        Args:
          page: the page.
          before: the hash of the page before.
          tokens: int32 [rows + 1], the written rows' tokens and the next one.
          drafted: how many of the rows the drafter has written.
        """
        if not self.reuse:
            return
        self._contents[page] = _Contents(before, tokens.copy(), drafted)
        after = self._after.setdefault(before, OrderedDict())
        after[page] = None
        if len(after) > _MOST_COMPARED:
            oldest = next(iter(after))
            self._forget(oldest)
            if oldest in self._idle and oldest not in self._hashes:
                del self._idle[oldest]
                heapq.heappush(self._empty, oldest)

    def _forget(self, page: int) -> None:
        """Forgets which rows of a page can be copied."""
        contents = self._contents.pop(page, None)
        if contents is not None:
            after = self._after[contents.before]
            del after[page]
            if not after:
                del self._after[contents.before]
