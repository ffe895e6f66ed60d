"""An n-gram model as arrays for a device, where the tree search reads it without the host.

Each n-gram has a place of its own in a table, by a perfect hash of its context and its last token
(native/include/dart/perfect_hash.h), so that finding it takes two reads. A context of one token is
identified by the token, a longer one by its own place in the table, as an n-gram one token shorter.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dart_jax import _core
from dart_jax.ngram.model import Level, NgramModel

EPS = np.float32(1e-10)  # added to probabilities; as in native/include/dart/tree_search.h

NO_COUNT = np.float32(1)  # in place of a log-probability: only the beginning of longer n-grams

_ENTRY_BYTES, _KEYS_A_BUCKET, _SEED_BYTES = 12, 4, 2


class DeviceTable(NamedTuple):
    """All n-grams of two or more tokens, by length.

    Attributes:
      sections: int32 [order - 1, 4], for the n-grams of each length: the first of their buckets,
        how many these are, the first of their places, how many these are.
      seeds: uint16 [K], of the buckets.
      entries: int32 [S, 3], by place: the context, the last token, and the bits of the float32
        log(q + eps), where q is the n-gram's count divided by the context's; `NO_COUNT` if the
        n-gram was not counted. Unused places have context -1.
      vocab_size: int32 scalar; tokens are below it.
    """

    # Arrays of numpy, of JAX, or abstract ones.
    sections: Any
    seeds: Any
    entries: Any
    vocab_size: Any

    @property
    def nbytes(self) -> int:
        """Bytes that it takes on the device."""
        return sum(array.nbytes for array in self)


@dataclasses.dataclass(frozen=True)
class TableSize:
    """The share of a model that a table holds.

    Attributes:
      ngrams: n-grams of two or more tokens in the table.
      total: those of the model.
      nbytes: bytes on the device.
      least: the smallest count of an n-gram in the table; 0 without any.
    """

    ngrams: int
    total: int
    nbytes: int
    least: int


def table_bytes(ngrams: int) -> int:
    """About how many bytes a table of so many n-grams of two or more tokens takes."""
    return _ENTRY_BYTES * (ngrams + ngrams // 9) + _SEED_BYTES * (ngrams // _KEYS_A_BUCKET)


def device_table(model: NgramModel, limit: int | None = None) -> tuple[DeviceTable, TableSize]:
    """Makes the table of a model.

    Args:
      model: the model.
      limit: bytes on the device, at most; the least frequent n-grams are left out, of equally
        frequent ones the longest. None for no limit.
    """
    levels = model.levels
    total = sum(len(level.token) for level in levels[1:])
    most = total
    if limit is not None:
        most = min(total, int(limit / (table_bytes(10**6) / 10**6)))
    masks = _most_frequent(levels, most)
    table = _table(levels, masks, model.vocab_size)
    counts = [level.count[keep] for level, keep in zip(levels[1:], masks, strict=True)]
    least = min((int(count.min()) for count in counts if len(count)), default=0)
    return table, TableSize(sum(map(len, counts)), total, table.nbytes, least)


def _parents(levels: tuple[Level, ...], n: int) -> NDArray[np.int64]:
    """For the n-grams of n >= 2 tokens: the n-gram without the last one, one level up."""
    return np.repeat(np.arange(len(levels[n - 2].token)), np.diff(levels[n - 2].child_begin))


def _most_frequent(levels: tuple[Level, ...], most: int) -> list[NDArray[np.bool_]]:
    """Marks the most frequent n-grams of 2, 3, .. tokens, of equally frequent ones the shortest.

    An n-gram is never more frequent than its parts, so these are in the table too.
    """
    counts = [level.count for level in levels[1:]]
    if most >= sum(map(len, counts)):
        return [np.ones(len(count), bool) for count in counts]
    if most == 0:
        return [np.zeros(len(count), bool) for count in counts]
    every = np.concatenate(counts)
    cut = np.partition(every, len(every) - most)[len(every) - most]
    room = most - int((every > cut).sum())
    masks = []
    for n, count in enumerate(counts, start=2):
        keep, equal = count > cut, np.flatnonzero(count == cut)[:room]
        keep[equal] = True
        room -= len(equal)
        if masks:
            keep &= masks[-1][_parents(levels, n)]
        masks.append(keep)
    return masks


def _table(
    levels: tuple[Level, ...], masks: list[NDArray[np.bool_]], vocab_size: int
) -> DeviceTable:
    """Makes a table of the n-grams that are marked, length by length."""
    sections, seeds, entries = [], [], []
    # What identifies each n-gram of one level.
    context_of = np.array(levels[0].token)
    buckets = places = 0
    for n, (level, keep) in enumerate(zip(levels[1:], masks, strict=True), start=2):
        parent = _parents(levels, n)[keep]
        above = levels[n - 2].count[parent]
        context, token, count = context_of[parent], level.token[keep], level.count[keep]
        size, seed, place = _core.perfect_hash(context, token)
        part = np.full((size, 3), -1, np.int32)
        part[place, 0], part[place, 1] = context, token
        part[place, 2] = _log_q(count, above).view(np.int32)
        context_of = np.full(len(level.token), -1, np.int32)
        context_of[keep] = place + places
        sections.append((buckets, len(seed), places, size))
        seeds.append(seed)
        entries.append(part)
        buckets, places = buckets + len(seed), places + size
    return DeviceTable(
        np.array(sections, np.int32).reshape(-1, 4),
        np.concatenate([np.empty(0, np.uint16), *seeds]),
        np.concatenate([np.empty((0, 3), np.int32), *entries]),
        np.array(vocab_size, np.int32),
    )


def _log_q(count: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.float32]:
    """log(count / above + eps), of 0 for a context that was
    not counted, and `NO_COUNT` for an n-gram that was not."""
    q = np.where(above > 0, count / np.maximum(above, 1), 0)
    return np.where(count > 0, log_probability(q.astype(np.float32)), NO_COUNT)


def log_probability(q: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(q + eps), at most 0, float32 [n]."""
    return np.minimum(np.log(q + EPS), np.float32(0))
