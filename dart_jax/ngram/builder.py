"""Sorted window counts in, an n-gram file out."""

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
    """Checks what an n-gram file may lose.

    Args:
      order: of the model.
      min_counts: [order] or empty, from 0 up, ascending.
      precision: 2..16, or None.

    Raises:
      UserError: they are not as described.
    """
    counts = list(min_counts)
    if counts and (len(counts) != order or min(counts) < 0 or counts != sorted(counts)):
        raise UserError(
            f"--min-counts takes {order} numbers from 0 up that do not descend, "
            f"got {' '.join(map(str, counts))}"
        )
    if precision is not None and not 2 <= precision <= 16:
        raise UserError(f"--precision must be 2 to 16, got {precision}")


class NgramBuilder:
    """Takes the distinct windows of a corpus in ascending order and writes the n-gram file.

    Attributes:
      layout: how the windows are written.
    """

    def __init__(self, layout: WindowLayout, scratch: str | os.PathLike[str] | None = None):
        """Begins an empty model.

        Args:
          layout: of the windows to come.
          scratch: existing directory for temporary files, so that memory does not grow with the
            model; the caller removes it. None keeps everything in memory.
        """
        self.layout = layout
        self._core = _core.NgramBuilder(
            layout.order, layout.vocab_size, "" if scratch is None else os.fspath(scratch)
        )

    def add(self, words: NDArray[np.uint64], counts: NDArray[np.integer]) -> None:
        """Takes the next windows.

        Args:
          words: uint64 [n, W], strictly ascending, and all beyond those given before.
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
        """Writes the file, which appears whole or not at all. Nothing can be added afterwards.

        Args:
          path: of the file.
          fingerprint: 32 bytes, `tokenizer_fingerprint` of the tokenizer; zeros if unknown.
          min_counts: [order], ascending: n-grams of n tokens counted less than `min_counts[n - 1]`
            are dropped.
          precision: significant bits kept of a count, 2..16; None keeps counts exact.

        Raises:
          UserError: as `check_lossy`; a longer n-gram lacks the shorter ones in it; or the disk is
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
    """`atomic_path`, with what can go wrong told in one line.

    Raises:
      UserError: the n-grams cannot make a file, or it cannot be written.
    """
    if Path(path).is_dir():
        raise UserError(f"{path} is a directory; name a file")
    try:
        with atomic_path(Path(path)) as part:
            yield part
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"cannot write n-gram model {path}: {error}") from error
