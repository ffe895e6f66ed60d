"""Texts that must not end before they have a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dart_jax.grammar.matching import Masked, all_but


class MinTokens:
    """One such text, which allows tokens as a `Matcher` does.

    Attributes:
      error: None, since it can always go on.
    """

    error = None

    def __init__(self, count: int, stop_ids: Sequence[int], vocab_size: int):
        """Begins a text whose first `count` tokens are none of the stop ids."""
        self._left, self._stop_ids = count, np.array(stop_ids, np.int64)
        self._allowed = all_but(stop_ids, vocab_size)

    @property
    def done(self) -> bool:
        """True if anything may follow."""
        return self._left <= 0

    def advance(self, tokens: Sequence[int]) -> None:
        """Adds tokens to the text."""
        self._left -= len(tokens)

    def allows(self, ids: np.ndarray) -> np.ndarray:
        """Returns which tokens may follow the text: bool, as `ids`."""
        return ~np.isin(ids, self._stop_ids)

    def fit(self, tree: np.ndarray, nodes: int, max_depth: int) -> Masked:
        """Masks the nodes of a tree; see `Matcher.fit`. Nodes that may not follow stay, and are
        never accepted."""
        fitted = np.zeros((4, nodes + 1), np.int32)
        count = min(tree.shape[1], nodes + 1)
        fitted[:, :count] = tree[:, :count]
        early = fitted[2, :, None] < self._left
        return Masked(fitted, np.where(early, self._allowed, np.uint32(2**32 - 1)))
