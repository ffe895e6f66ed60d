"""Arithmetic on quantised weights: integers out of 32-bit words, and (values - zeros) * scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Converted at a time: all numbers of a part stay in the processor's cache.
_ROWS = 64


def in_blocks(size: int, block: int) -> np.ndarray:
    """The block that each of `size` rows or columns belongs to: integers [size]."""
    return np.arange(size) // block


def unpack(
    packed: np.ndarray, bits: int, axis: int, order: Sequence[int] | None = None
) -> np.ndarray:
    """Unpacks unsigned integers.

    Args:
      packed: 32-bit integers, two axes; each holds 32 // bits numbers, the first one in the lowest
        bits.
      bits: of one number, at most 8.
      axis: the one along which numbers were packed.
      order: of the numbers in a word, which of them is the first, second, ...; None for theirs.

    Returns:
      uint8, 32 // bits times as long along `axis`.
    """
    count = 32 // bits
    shape = list(packed.shape)
    shape[axis] *= count
    out, words = np.empty(shape, np.uint8), packed.view(np.uint32)
    for place, number in enumerate(order or range(count)):
        at = [slice(None), slice(None)]
        at[axis] = slice(number, None, count)
        out[tuple(at)] = (words >> (bits * place)) & ((1 << bits) - 1)
    return out


def dequantize(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
) -> np.ndarray:
    """Computes (values - zeros) * scales in float32.

    Args:
      values: [.., R, C], of any real dtype.
      rows: integers [R]: the row of `scales` and `zeros` for each row of values.
      columns: integers [C]: likewise the column.
      scales: [.., r, c].
      zeros: [.., r, c]; None for zeros.

    Returns:
      float32 [.., R, C].
    """
    out = np.empty(values.shape, np.float32)
    factors = scales.astype(np.float32)
    shifts = None if zeros is None else zeros.astype(np.float32)
    for matrix in np.ndindex(values.shape[:-2]):
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            to = out[matrix][part]
            to[...] = values[matrix][part]
            if shifts is not None:
                to -= _spread(shifts[matrix], rows[part], columns)
            to *= _spread(factors[matrix], rows[part], columns)
    return out


def _spread(numbers: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The number for each place: [rows, columns], or [rows, 1] if there is one column."""
    chosen = numbers.take(rows, axis=0)
    return chosen if chosen.shape[1] == 1 else chosen.take(columns, axis=1)
