"""An n-gram model as arrays for a device, where the tree search reads it without the host.

Each n-gram has a place of its own in a table, by a perfect hash of its context and its last token
(native/include/dart/perfect_hash.h), so that finding it takes two reads. A context of one token is
identified by the token, a longer one by its own place in the table, as an n-gram one token shorter.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dart_jax import _core
from dart_jax.ngram.model import NgramModel

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


def table_bytes(ngrams: int) -> int:
    """Returns about how many bytes a table of `ngrams` n-grams of two or more tokens takes."""
    return _ENTRY_BYTES * (ngrams + ngrams // 9) + _SEED_BYTES * (ngrams // _KEYS_A_BUCKET)


def device_table(model: NgramModel) -> DeviceTable:
    """Makes the table of a model, length by length."""
    levels = model.levels
    sections, seeds, entries = [], [], []
    context_of = levels[0].token  # what identifies each n-gram of one length
    buckets = places = 0
    for shorter, level in itertools.pairwise(levels):
        # Each n-gram without its last token, among the shorter ones.
        parent = np.repeat(np.arange(len(shorter.token)), np.diff(shorter.child_begin))
        context = context_of[parent]
        size, seed, place = _core.perfect_hash(context, level.token)
        part = np.full((size, 3), -1, np.int32)
        part[place, 0], part[place, 1] = context, level.token
        part[place, 2] = _log_q(level.count, shorter.count[parent]).view(np.int32)
        context_of = place + np.int32(places)
        sections.append((buckets, len(seed), places, size))
        seeds.append(seed)
        entries.append(part)
        buckets, places = buckets + len(seed), places + size
    return DeviceTable(
        np.array(sections, np.int32).reshape(-1, 4),
        np.concatenate([np.empty(0, np.uint16), *seeds]),
        np.concatenate([np.empty((0, 3), np.int32), *entries]),
        np.array(model.vocab_size, np.int32),
    )


def _log_q(count: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.float32]:
    """log(count / above + eps), of 0 for a context that was not counted, and `NO_COUNT` for an
    n-gram that was not."""
    q = np.where(above > 0, count / np.maximum(above, 1), 0)
    return np.where(count > 0, log_probability(q.astype(np.float32)), NO_COUNT)


def log_probability(q: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(q + eps), at most 0, float32 [n]."""
    return np.minimum(np.log(q + EPS), np.float32(0))
