"""How much a text repeats itself: a text that runs in circles is easy to draft, and flatters every
method that is measured with it."""

from __future__ import annotations

import numpy as np

# Tokens of a piece of text that counts as a repetition if it occurred before.
GRAM = 8

# Share of repetitions up to which a text counts as varied.
LITTLE = 0.2


def repeated_grams(tokens: np.ndarray) -> tuple[int, int]:
    """Returns how many 8-grams of a text occurred in it before, and how many it has.

    Args:
      tokens: int [n].
    """
    if len(tokens) < GRAM:
        return 0, 0
    grams = np.lib.stride_tricks.sliding_window_view(tokens, GRAM)
    return len(grams) - len(np.unique(grams, axis=0)), len(grams)


def is_varied(tokens: np.ndarray) -> bool:
    """Whether at most a fifth of a text's 8-grams repeat earlier ones."""
    repeated, total = repeated_grams(tokens)
    return repeated <= LITTLE * total
