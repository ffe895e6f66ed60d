"""Which replica a prompt goes to: one that has read its beginning, unless that one is too busy."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

# Beginnings that are remembered: 100,000 pages of 64 tokens are 6.4 million tokens of prompts.
MOST_PREFIXES = 100_000


def prefixes_of(tokens: np.ndarray, page: int) -> list[bytes]:
    """A name for the beginning of a prompt up to the end of each of its whole pages.

    Args:
      tokens: int32 [n], the prompt.
      page: tokens in a page of the KV cache; a part of a page is never found there again.
    """
    names, so_far = [], hashlib.blake2b(digest_size=16)
    for start in range(0, len(tokens) - page + 1, page):
        so_far.update(np.ascontiguousarray(tokens[start : start + page], "<i4").tobytes())
        names.append(so_far.copy().digest())
    return names


class Affinity:
    """Remembers which replica has read which beginnings of prompts.

    A replica that has read much of a prompt need not read it again; so the turns of a conversation
    stay together, and so do prompts with the same instructions. But a replica may have at most
    `slack` requests more than the one with the fewest; those that have more are passed over, and
    then another replica reads this beginning as well.
    """

    def __init__(self, page: int, slack: int, most: int = MOST_PREFIXES):
        """Knows nothing yet.

        Args:
          page: see `prefixes_of`.
          slack: see above.
          most: beginnings that are remembered; those not used for longest are forgotten.
        """
        self._page, self._slack, self._most = page, slack, most
        self._readers: OrderedDict[bytes, set[str]] = OrderedDict()

    def order(self, tokens: np.ndarray, loads: Mapping[str, int]) -> list[str]:
        """The replicas in the order in which they should get a prompt; the first is expected to.

        Args:
          tokens: int32 [n], the prompt.
          loads: requests of each live replica, running or waiting.
        """
        prefixes = prefixes_of(tokens, self._page)
        fewest = min(loads.values(), default=0)
        read = {replica: self._pages_read(prefixes, replica) for replica in loads}

        def merit(replica: str) -> tuple[bool, int, int, bytes]:
            # The last part decides between equals: always in the same way for the same beginning,
            # even after a restart or in another server (rendezvous hashing).
            first = prefixes[0] if prefixes else b""
            lot = hashlib.blake2b(first + replica.encode(), digest_size=8).digest()
            near = loads[replica] <= fewest + self._slack
            return near, read[replica] if near else 0, -loads[replica], lot

        ordered = sorted(loads, key=merit, reverse=True)
        if ordered:
            self._remember(prefixes, ordered[0], loads)
        return ordered

    def _pages_read(self, prefixes: list[bytes], replica: str) -> int:
        for count in range(len(prefixes), 0, -1):
            if replica in self._readers.get(prefixes[count - 1], ()):
                return count
        return 0

    def _remember(self, prefixes: list[bytes], replica: str, alive: Mapping[str, int]) -> None:
        # The longest one first: it is then the first to be forgotten.
        for prefix in reversed(prefixes):
            readers = self._readers.get(prefix, set())
            self._readers[prefix] = {each for each in readers if each in alive} | {replica}
            self._readers.move_to_end(prefix)
        while len(self._readers) > self._most:
            self._readers.popitem(last=False)
