"""What texts draft from besides themselves, and how far to trust what they draft."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from dart_jax import _core
from dart_jax.decoding.drafting.text import LONGEST

# The probability that a token follows that has followed a match of n tokens, n / (n + 3), as long
# as nothing is known; the tokens that this counts as; and those after which earlier ones count
# half. Texts differ: what one repeats says little of the next.
_PRIOR_TOKENS, _HALF = 20.0, 500

# Groups that are kept, those used last; and tokens of a group, the newest.
_GROUPS, _TOKENS = 64, 16_384


class TextTrust:
    """Counts how often a token followed that had followed a match, by the match's length. For any
    thread."""

    def __init__(self) -> None:
        self._lock, self._counts = threading.Lock(), np.zeros((LONGEST, 2))

    @property
    def values(self) -> np.ndarray:
        """The trust by length from 1 on, float32 [LONGEST]; see `Texts`."""
        length = np.arange(1, LONGEST + 1)
        tried, right = self._counts.T
        known = (right + _PRIOR_TOKENS * length / (length + 3)) / (tried + _PRIOR_TOKENS)
        return np.clip(known, 0.01, 0.99).astype(np.float32)

    def learn(self, tokens: np.ndarray, first: int) -> None:
        """Adds the tokens of a text, int32 [n], from place `first` on."""
        counts = np.zeros((LONGEST, 2), np.uint32)
        _core.count_followers(tokens, first, counts)
        with self._lock:
            self._counts = self._counts * 0.5 ** (int(counts[:, 0].sum()) / _HALF) + counts


class SharedTexts:
    """The latest texts of groups."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, np.ndarray] = OrderedDict()

    def add(self, group: str, tokens: np.ndarray) -> None:
        """Adds a text, int32 [n], prompt included."""
        before = self.of(group)
        texts = [*([] if before is None else [before]), np.full(1, -1, np.int32), tokens]
        self._groups[group] = np.concatenate(texts)[-_TOKENS:]
        while len(self._groups) > _GROUPS:
            self._groups.popitem(last=False)

    def of(self, group: str | None) -> np.ndarray | None:
        """Returns a group's tokens, with a -1 before each text, or None without any."""
        if group is None or group not in self._groups:
            return None
        self._groups.move_to_end(group)
        return self._groups[group]
