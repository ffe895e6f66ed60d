"""Windows: the unit in which a corpus is counted.

A window of `order` tokens starts at every position of a document; near the end of the document it
is shorter. The counts of all distinct windows determine the counts of all n-grams: an n-gram occurs
as often as the windows that begin with it.

A window is encoded as a row of unsigned 64-bit words, so that a general-purpose engine can sort and
add up windows. Each token is stored as token + 1 in as many bits as the vocabulary needs, 0 pads
short windows, the first token is in the highest bits, and each word holds as many whole tokens as
fit. Rows in ascending order are windows in lexicographic order, prefixes before longer windows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dart_jax import _core


@dataclasses.dataclass(frozen=True)
class WindowLayout:
    """The encoding of windows of up to `order` tokens below `vocab_size`.

    Raises:
      ValueError: order not in 1..5, or vocab_size not in 1..2**24.
    """

    order: int
    vocab_size: int

    def __post_init__(self):
        if not 1 <= self.order <= _core.MAX_ORDER:
            raise ValueError(f"n-gram order must be 1 to {_core.MAX_ORDER}, got {self.order}")
        if not 1 <= self.vocab_size <= _core.MAX_VOCABULARY:
            raise ValueError(
                f"vocabulary size must be 1 to {_core.MAX_VOCABULARY}, got {self.vocab_size}"
            )

    @property
    def token_bits(self) -> int:
        """Bits per token, enough for any token + 1."""
        return self.vocab_size.bit_length()

    @property
    def per_word(self) -> int:
        """Tokens per word."""
        return min(self.order, 64 // self.token_bits)

    @property
    def words(self) -> int:
        """Words per window, W."""
        return -(-self.order // self.per_word)

    def pack(self, windows: NDArray[np.integer]) -> NDArray[np.uint64]:
        """Encodes windows int [n, order], -1 after the end of a window, as uint64 [n, W]."""
        words = np.zeros((len(windows), self.words), np.uint64)
        for i in range(self.order):
            code = (windows[:, i].astype(np.int64) + 1).astype(np.uint64)
            words[:, i // self.per_word] |= code << self._shift(i)
        return words

    def windows(
        self, tokens: NDArray[np.integer], offsets: NDArray[np.integer]
    ) -> NDArray[np.uint64]:
        """Returns all windows of documents, one per token, in order.

        Args:
          tokens: integers [n], the concatenated documents.
          offsets: integers [documents + 1]; document i is `tokens[offsets[i]:offsets[i + 1]]`.

        Returns:
          uint64 [n, W].

        Raises:
          ValueError: a token is outside the vocabulary.
        """
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab_size:
            raise ValueError(f"tokens must be in 0..{self.vocab_size - 1}")
        codes = np.zeros(len(tokens) + self.order - 1, np.uint64)
        codes[: len(tokens)] = tokens
        codes[: len(tokens)] += 1
        words = np.zeros((len(tokens), self.words), np.uint64)
        for i in range(self.order):
            words[:, i // self.per_word] |= codes[i : i + len(tokens)] << self._shift(i)
        # So far, windows reach into the next document: truncate those that begin `left` tokens
        # before the end of theirs.
        begin, end = np.asarray(offsets)[:-1], np.asarray(offsets)[1:]
        for left in range(1, self.order):
            short = (end - left)[end - left >= begin]
            for word, mask in enumerate(self._first(left)):
                words[short, word] &= mask
        return words

    @staticmethod
    def distinct(words: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Returns each of the windows uint64 [n, W] once, ascending, and how often it is there."""
        single = words.shape[1] == 1  # is sorted much faster
        words = np.sort(words, axis=0) if single else words[np.lexsort(words.T[::-1])]
        new = np.ones(len(words), bool)
        new[1:] = (words[1:] != words[:-1]).any(axis=1)
        begin = np.flatnonzero(new)
        return words[begin], np.diff(begin, append=len(words))

    def _first(self, n: int) -> list[np.uint64]:
        """Returns masks, one per word, of a window's first n tokens."""
        ones = (1 << self.token_bits) - 1
        masks = [0] * self.words
        for i in range(n):
            masks[i // self.per_word] |= ones << int(self._shift(i))
        return [np.uint64(mask) for mask in masks]

    def _shift(self, i: int) -> np.uint64:
        """Returns the bit position of token i in its word."""
        return np.uint64((self.per_word - 1 - i % self.per_word) * self.token_bits)
