"""Pages in the order in which the C++ core multiplies them (`in_groups` in dart/pages.h)."""

from __future__ import annotations

import numpy as np


def grouped(layers):
    """Layers of keys and values in rows, [P, K, R, h], as the core stores them."""
    return _each(layers, rows=True)


def as_rows(layers):
    """The inverse of `grouped`."""
    return _each(layers, rows=False)


def _each(layers, rows):
    return tuple(
        tuple(
            _arranged(np.asarray(pages), keys, rows)
            for pages, keys in zip(layer, (True, False), strict=True)
        )
        for layer in layers
    )


def _arranged(pages, keys, rows):
    *_, size, h = pages.shape
    pair = 2 if pages.dtype.itemsize == 2 else 1
    together, number = (16, pair) if keys else (pair, 1)
    if size % 16 or h % 16:
        return pages
    inner = (together, h // number, number) if rows else (h // number, together, number)
    split = pages.reshape(*pages.shape[:2], size // together, *inner)
    return split.transpose(0, 1, 2, 4, 3, 5).reshape(pages.shape)
