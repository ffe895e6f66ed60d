"""Who holds which pages of the KV pools, and which pages hold a known beginning of a text.

A page holds the keys and values of as many tokens, in the target's pool and in the drafter's. A
complete page of a text can serve every text that begins alike: it is found by a key that stands for
all tokens up to its end, and the one after that, because the drafter's last row joins the feature
of its own token with the next token. A page that only the target has written serves only texts that
are not drafted for.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

# Stands for all tokens up to the end of a page.
PageKey = bytes

NO_TOKENS: PageKey = b""


def page_key(before: PageKey, tokens: np.ndarray) -> PageKey:
    """The key of a page, given that of the page before and int32 [page + 1]: its tokens, and the
    next one."""
    return hashlib.blake2b(before + tokens.tobytes(), digest_size=16).digest()


class PagePool:
    """Counts who holds each page. Pages that nobody holds keep their contents until they are needed
    for something else, the ones that were used least recently first.

    Not for several threads.

    Attributes:
      size: number of pages.
      page: rows of a page.
    """

    def __init__(self, size: int, page: int, *, reuse: bool = True):
        """Creates a pool of free pages; `reuse`: whether pages are found again by their tokens."""
        self.size, self.page = size, page
        self._reuse = reuse
        self._empty = list(range(size - 1, -1, -1))
        self._holders = [0] * size
        # Keys, and whether the drafter has written the page, too.
        self._keys: dict[int, tuple[PageKey, bool]] = {}
        self._found: dict[tuple[PageKey, bool], int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known and held by nobody

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.size - self.free

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        return len(self._empty) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """Takes pages, whose contents are undefined; None, and no page, if there are too few."""
        if count > self.free:
            return None
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._empty:
            page = self._empty.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            del self._found[self._keys.pop(page)]
        self._holders[page] = 1
        return page

    def release(self, pages: Iterable[int]) -> None:
        """Gives up pages that were taken or found."""
        # The last ones first: a page is useless without those before it.
        for page in reversed(list(pages)):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._keys:
                self._idle[page] = None
            else:
                self._empty.append(page)

    def find(self, tokens: np.ndarray, *, drafted: bool) -> tuple[list[int], PageKey]:
        """Finds and holds the pages with the longest known beginning of a text, int32 [n].

        Args:
          tokens: of the text.
          drafted: whether the drafter must have written them, too.

        Returns:
          The pages, and the key of the last one.
        """
        pages, key = [], NO_TOKENS
        while self._reuse and len(tokens) > (len(pages) + 1) * self.page:
            begin = len(pages) * self.page
            longer = page_key(key, tokens[begin : begin + self.page + 1])
            page = self._found.get((longer, True))
            if page is None and not drafted:
                page = self._found.get((longer, False))
            if page is None:
                break
            if not self._holders[page]:
                del self._idle[page]
            self._holders[page] += 1
            pages.append(page)
            key = longer
        return pages, key

    def know(self, page: int, key: PageKey, *, drafted: bool) -> None:
        """Lets a page that is held be found by its key, unless another one is already; `drafted`:
        whether the drafter has written it, too."""
        if self._reuse and (key, drafted) not in self._found:
            self._found[key, drafted] = page
            self._keys[page] = key, drafted

    def forget(self) -> None:
        """Lets no page be found any more: their contents will be overwritten. None may be held."""
        assert not self.used
        self._empty += self._idle
        self._idle.clear()
        self._keys.clear()
        self._found.clear()
