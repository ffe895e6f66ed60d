"""Builds n-gram files from sorted window counts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.files import atomic_path
from dart_jax.ngram.windows import WindowLayout


def check_lossy(order: int, min_counts: Sequence[int], precision: int | None) -> None:
    """Checks the options of a lossy n-gram file.

    Args:
      order: the model's order.
      min_counts: [order] or empty; at least 0 and not descending.
      precision: 2..16, or None.

    Raises:
      UserError: they are not as described.
    """
    counts = list(min_counts)
    if counts and (len(counts) != order or min(counts) < 0 or counts != sorted(counts)):
        raise UserError(
            f"--min-counts takes {order} numbers of at least 0 that do not descend, "
            f"got {' '.join(map(str, counts))}"
        )
    if precision is not None and not 2 <= precision <= 16:
        raise UserError(f"--precision must be 2 to 16, got {precision}")


class NgramBuilder:
    """Writes an n-gram file from the distinct windows of a corpus, added in ascending order.

    Attributes:
      layout: how the windows are encoded.
    """

    def __init__(self, layout: WindowLayout, scratch: str | os.PathLike[str] | None = None):
        """Starts an empty model.

        Args:
          layout: how the windows are encoded.
          scratch: existing directory for temporary files, so that memory does not grow with the
            model; the caller removes it. None keeps everything in memory.
        """
        self.layout = layout
        self._core = _core.NgramBuilder(
            layout.order, layout.vocab_size, "" if scratch is None else os.fspath(scratch)
        )

    def add(self, words: NDArray[np.uint64], counts: NDArray[np.integer]) -> None:
        """Adds the next windows.

        Args:
          words: uint64 [n, W], strictly ascending, and greater than all windows added before.
          counts: integers [n], how often each occurs, at least 0.

        Raises:
          ValueError: windows out of order, tokens outside the vocabulary, or negative counts.
        """
        self._core.add(np.ascontiguousarray(words), np.ascontiguousarray(counts, np.int64))

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        fingerprint: bytes = bytes(32),
        min_counts: Sequence[int] | None = None,
        precision: int | None = None,
    ) -> None:
        """Writes the file atomically. Nothing can be added afterwards.

        Args:
          path: the file to write.
          fingerprint: 32 bytes, `tokenizer_fingerprint` of the tokenizer; zeros if unknown.
          min_counts: [order], ascending: n-grams of n tokens counted less than `min_counts[n - 1]`
            are dropped.
          precision: significant bits per count, 2..16, or None to keep counts exact.

        Raises:
          UserError: as `check_lossy`; an n-gram's shorter suffixes are missing; or the disk is
            full.
        """
        check_lossy(self.layout.order, min_counts or (), precision)
        with writing(path) as part:
            self._core.write(
                str(part),
                fingerprint=fingerprint,
                min_counts=list(min_counts or ()),
                precision=precision or 0,
            )


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """As `atomic_path`, with errors reported as UserErrors of one line.

    Raises:
      UserError: the n-grams are not valid, or the file cannot be written.
    """
    if Path(path).is_dir():
        raise UserError(f"{path} is a directory; name a file")
    try:
        with atomic_path(Path(path)) as part:
            yield part
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"cannot write n-gram model {path}: {error}") from error
