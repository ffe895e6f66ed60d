"""Pages in the order in which the C++ core multiplies them (`in_groups` in dart/pages.h)."""

from __future__ import annotations

import numpy as np


def grouped(layers):
    """Layers of keys and values in rows, [P, K, R, h], as the core stores them."""
    return tuple(tuple(map(_grouped, layer, (True, False))) for layer in layers)


def as_rows(layers):
    """The inverse of `grouped`."""
    return tuple(tuple(map(_as_rows, layer, (True, False))) for layer in layers)


def _grouped(pages, keys):
    pages = np.asarray(pages)
    split, order = _form(pages, keys, rows=True)
    return pages.reshape(split).transpose(order).reshape(pages.shape)


def _as_rows(pages, keys):
    pages = np.asarray(pages)
    split, order = _form(pages, keys, rows=False)
    return pages.reshape(split).transpose(order).reshape(pages.shape)


def _form(pages, keys, rows):
    """The shape to split pages into, and the order of its axes then."""
    *_, size, h = pages.shape
    pair = 2 if pages.dtype.itemsize == 2 else 1
    together = 16 if keys else pair
    if size % 16 or h % 16:
        return pages.shape, range(4)
    outer = (*pages.shape[:2], size // together)
    number = pair if keys else 1
    inner = (together, h // number, number) if rows else (h // number, together, number)
    return (*outer, *inner), (0, 1, 2, 4, 3, 5)
