"""Real candidates to search, from decoding real prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dart_jax.decoding.decoder import Decoder
from dart_jax.decoding.search.choice import TreeSearch


class _Recorder:
    """A search that keeps what it searches."""

    def __init__(self, search: TreeSearch):
        self._search = search
        self.rows: list[np.ndarray] = []

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        self.rows.extend(np.asarray(packed))
        return np.asarray(self._search(packed))


def record(decoder: Decoder, prompts: Sequence[np.ndarray], max_new_tokens: int) -> np.ndarray:
    """Decodes prompts one by one and returns what was searched, int32 [n, width]."""
    assert decoder.search is not None
    recorder = _Recorder(decoder.search)
    recording = dataclasses.replace(decoder, search=recorder, loop="host", sizes=())
    for prompt in prompts:
        recording([prompt], max_new_tokens)
    return np.stack(recorder.rows)


def batches(rows: np.ndarray, size: int, seed: int) -> np.ndarray:
    """All rows, each several times if there are few, in batches of different ones: int32
    [m, size, width] with m * size >= 64."""
    rng = np.random.default_rng(seed)
    count = -(-max(len(rows), 64) // size)
    order = np.concatenate(
        [rng.permutation(len(rows)) for _ in range(count * size // len(rows) + 1)]
    )
    return rows[order[: count * size]].reshape(count, size, -1)
