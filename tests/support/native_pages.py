"""Pages in the order in which the C++ core multiplies them (`in_groups` in dart/pages.h)."""

from functools import partial

import numpy as np


def grouped(layers, back=False):
    """Layers of keys and values in rows, [P, K, R, h], as the core stores them; or back."""

    def arranged(pages, keys):
        pages = np.asarray(pages)
        *_, size, h = pages.shape
        pair = 2 if pages.dtype.itemsize == 2 else 1
        together, number = (16, pair) if keys else (pair, 1)
        if size % 16 or h % 16:
            return pages
        inner = (h // number, together, number) if back else (together, h // number, number)
        split = pages.reshape(*pages.shape[:2], size // together, *inner)
        return split.transpose(0, 1, 2, 4, 3, 5).reshape(pages.shape)

    return tuple(tuple(map(arranged, layer, (True, False))) for layer in layers)


as_rows = partial(grouped, back=True)
