"""Corpora for the tests of the n-gram model, and brute-force n-gram counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from dart_jax import _core
from dart_jax.ngram import NgramBuilder, NgramModel, WindowLayout

orders = st.integers(1, _core.MAX_ORDER)
seeds = st.integers(0, 2**32 - 1)

# Few distinct tokens, so that n-grams repeat.
small_documents = st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=6)


def random_documents(
    seed: int, vocab_size: int, documents: int = 5, length: int = 300, common: float = 0.7
) -> list[list[int]]:
    """Documents in which one token is common, so that some contexts of any length have many
    continuations and others one. Some documents are empty."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, vocab_size, (documents, length))
    drawn[rng.random(drawn.shape) < common] = vocab_size // 2
    lengths = rng.integers(0, length + 1, documents)
    lengths[rng.integers(documents)] = length
    return [row[:n].tolist() for row, n in zip(drawn, lengths, strict=True)]


@st.composite
def corpora(draw):
    """Documents and a vocabulary size."""
    if draw(st.booleans()):
        return draw(small_documents), draw(st.integers(6, 9))
    vocab_size = draw(st.sampled_from([1, 2, 3, 16, 17, 40, 256, 3000]))
    return random_documents(draw(seeds), vocab_size), vocab_size


def brute_force_windows(documents: Iterable[Sequence[int]], order: int) -> Counter:
    """Counts the windows, up to `order` tokens from each position, as tuples."""
    return Counter(
        tuple(document[i : i + order]) for document in documents for i in range(len(document))
    )


def ngram_counts(windows: Mapping[tuple[int, ...], int]) -> dict[tuple[int, ...], int]:
    """Counts every n-gram, as a tuple, from counted windows."""
    counts = {}
    for window, count in windows.items():
        for n in range(1, len(window) + 1):
            counts[window[:n]] = counts.get(window[:n], 0) + count
    return counts


def brute_force_counts(documents: Iterable[Sequence[int]], order: int) -> dict:
    """Counts every n-gram of a corpus, as a tuple."""
    return ngram_counts(brute_force_windows(documents, order))


def counts_of(model: NgramModel) -> dict[tuple[int, ...], int]:
    """Reads the counts of a model's levels."""
    counts, levels = {}, model.levels
    prefixes = [()] * len(levels[0].token)
    for token, count, child_begin in levels:
        grams = [(*prefix, t) for prefix, t in zip(prefixes, token.tolist(), strict=True)]
        counts.update(zip(grams, count.tolist(), strict=True))
        children = np.diff(child_begin)  # none at the last level
        prefixes = [gram for gram, n in zip(grams, children, strict=False) for _ in range(n)]
    return counts


def build(path, windows, order, vocab_size, *, scratch=None, batches=1, **options) -> NgramModel:
    """Writes a file through `NgramBuilder`, and loads it."""
    builder = NgramBuilder(WindowLayout(order, vocab_size), scratch)
    ascending = sorted(windows)
    rows = [[*window, *[-1] * (order - len(window))] for window in ascending]
    words = builder.layout.pack(np.array(rows, np.int32).reshape(-1, order))
    counts = np.array([windows[window] for window in ascending], np.int64)
    for part in np.array_split(np.arange(len(counts)), batches):
        builder.add(words[part], counts[part])
    builder.write(path, **options)
    return NgramModel.load(path)


def forget(windows: Mapping[tuple[int, ...], int], seed: int, share: float) -> dict:
    """Returns the windows with a random share of the counts set to 0."""
    rng = np.random.default_rng(seed)
    return {
        window: 0 if rng.random() < share else count for window, count in sorted(windows.items())
    }
