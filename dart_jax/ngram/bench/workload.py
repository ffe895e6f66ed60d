"""Workloads: made-up drafts for real text, and a made-up model as large as the published one."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.ngram.builder import NgramBuilder
from dart_jax.ngram.model import NgramModel
from dart_jax.ngram.windows import WindowLayout

POSITIONS, CANDIDATES = 8, 25
SUCCESSORS = 12  # candidates per position that the model has seen as followers


class Drafts(NamedTuple):
    """Drafts that a drafter could have proposed at some positions of a text.

    Attributes:
      context: int32 [Q, 4].
      ids: int32 [Q, d, k].
      logits: float32 [Q, d, k], descending.
    """

    context: NDArray[np.int32]
    ids: NDArray[np.int32]
    logits: NDArray[np.float32]


def make_drafts(
    model: NgramModel, tokens: NDArray[np.integer], queries: int, rng: np.random.Generator
) -> Drafts:
    """Makes drafts for random positions of a text.

    The candidates of a drafted position are the true next token, ranked higher the nearer the
    position; tokens that the model has seen after the previous token, drawn by frequency; and
    random tokens of the text.

    Args:
      model: supplies the seen continuations.
      tokens: integers [n], text that the model was not counted from.
      queries: Q.
      rng: source of all randomness.
    """
    d, k = POSITIONS, CANDIDATES
    place = rng.integers(CONTEXT, len(tokens) - d - 1, queries)
    context = np.stack([tokens[place - CONTEXT + 1 + i] for i in range(CONTEXT)], axis=1)
    ids = tokens[rng.integers(0, len(tokens), (queries, d, k))].astype(np.int32)
    noise = rng.normal(0, 2, (queries, d, k)) - 1.5 * np.log(np.arange(1, k + 1))
    for query in range(queries):
        for level in range(d):
            before, true = tokens[place[query] + level], tokens[place[query] + level + 1]
            row = ids[query, level]
            if seen := model.continuations(np.array([before], np.int32)):
                counts = seen[0].counts
                drawn = rng.choice(len(counts), SUCCESSORS, p=counts / counts.sum())
                row[:SUCCESSORS] = seen[0].token[drawn]
            rank = min(rng.geometric(0.7 * 0.85**level), k) - 1
            row[rng.permutation(rank)] = row[:rank]
            row[rank] = true
    logits = -np.sort(-noise, axis=-1)
    return Drafts(context.astype(np.int32), ids, logits.astype(np.float32))


def generate(
    path: str | os.PathLike[str],
    scratch: str | os.PathLike[str],
    ngrams: int,
    vocab_size: int,
    rng: np.random.Generator,
    progress: bool = False,
) -> None:
    """Writes an order-3 model of about `ngrams` made-up n-grams, five sixths of them trigrams.

    As in text, frequent tokens have many followers, most contexts one or two, and most n-grams
    occur once.
    """
    # The number of followers of each token, by Zipf's law over a random order of the tokens, and
    # the followers themselves, popular ones more often.
    share = 1 / (10.0 + rng.permutation(vocab_size))
    share = np.minimum(share / share.sum() * ngrams / 6 * 1.3, 0.7 * vocab_size)
    follow = np.clip(share * (ngrams / 6 / share.sum()), 1, vocab_size).astype(np.int64)
    begin = np.concatenate([[0], np.cumsum(follow)])
    popular = rng.permutation(vocab_size)
    successors = np.empty(begin[-1], np.int32)
    for token, size in enumerate(follow):
        drawn = np.unique(popular[(rng.random(2 * size) ** 2 * vocab_size).astype(np.int64)])
        if len(drawn) < size:
            drawn = np.union1d(drawn, rng.choice(vocab_size, size, replace=False))
        kept = np.sort(rng.choice(drawn, size, replace=False))
        successors[begin[token] : begin[token + 1]] = kept

    def trigrams(token: int, scale: float) -> NDArray[np.int64]:
        """Makes trigrams [n, 3] that begin with a token; most bigrams have one follower."""
        middle = successors[begin[token] : begin[token + 1]].astype(np.int64)
        fan_out = (rng.pareto(1.25, len(middle)) * scale + 1).astype(np.int64)
        fan_out = np.minimum(fan_out, follow[middle])
        row = np.repeat(np.arange(len(middle)), fan_out)
        rank = (rng.random(len(row)) ** 1.5 * follow[middle[row]]).astype(np.int64)
        row, rank = np.divmod(np.unique(row * 2**32 + rank), 2**32)
        last = successors[begin[middle[row]] + rank]
        return np.stack([np.full(len(row), token), middle[row], last], axis=1)

    # Find the scale that gives five trigrams per bigram, on a sample.
    sample = rng.integers(0, vocab_size, 100)
    scale = 1.0
    for _ in range(5):
        made = sum(len(trigrams(token, scale)) for token in sample)
        scale *= 5 * follow[sample].sum() / made
    layout = WindowLayout(3, vocab_size)
    builder = NgramBuilder(layout, scratch)
    for token in track(range(vocab_size), "n-grams", disable=not progress, transient=True):
        windows = layout.pack(trigrams(token, scale))
        builder.add(windows, (rng.random(len(windows)) ** -0.8).astype(np.int64))
    builder.write(path)
