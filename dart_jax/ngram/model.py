"""The n-gram model, read from its file in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.ngram.builder import NgramBuilder, check_lossy, writing
from dart_jax.ngram.windows import WindowLayout


class Level(NamedTuple):
    """All n-grams of one length, in lexicographic order of their tokens.

    The children of n-gram `i`, its extensions by one token, are `child_begin[i]:child_begin[i + 1]`
    of the next level.
    """

    token: NDArray[np.int32]  # last token of each n-gram
    count: NDArray[np.int64]
    child_begin: NDArray[np.int64]  # [n + 1]; empty at the last level


class Continuations(NamedTuple):
    """Tokens that followed one context."""

    context: tuple[int, ...]
    count: int  # of the context
    token: NDArray[np.int32]  # [n], ascending
    counts: NDArray[np.int64]  # [n], of the context extended by each token


class NgramModel:
    """Counts of all n-grams of 1 to `order` tokens of a corpus. Immutable.

    Attributes:
      core: the C++ model, for the tree search.
      header: facts about the file, by the names of docs/ngram-format.md; lists are by the length of
        n-grams.
      file: uint8 [n], the bytes of the file, usually memory-mapped and so shared with all other
        processes that read it.
    """

    def __init__(self, file: NDArray[np.uint8], *, checksums: bool = True):
        """Reads the bytes of an n-gram file, which must not change.

        Raises:
          ValueError: they are not a complete, undamaged n-gram file.
        """
        self.file = file
        self.core = _core.NgramModel(file, checksums=checksums)
        self.header = self.core.header()

    @classmethod
    def count(
        cls,
        documents: Iterable[Sequence[int] | NDArray],
        order: int = 3,
        *,
        vocab_size: int | None = None,
        fingerprint: bytes = bytes(32),
    ) -> Self:
        """Counts the n-grams of token sequences; no n-gram spans two of them.

        Works in memory, except for a file in the system's temporary directory;
        `dart-jax ngram count` counts a corpus of any size.

        Args:
          documents: token sequences.
          order: length of the longest n-grams, 1..5.
          vocab_size: tokens are below it; by default the smallest that fits.
          fingerprint: `tokenizer_fingerprint` of the tokenizer; zeros if unknown.

        Raises:
          ValueError: tokens that are not integers in the vocabulary, or an order out of range.
        """
        arrays = [_token_array(document) for document in documents]
        tokens = np.concatenate([np.empty(0, np.int32), *arrays])
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        if tokens.min(initial=0) < 0:
            raise ValueError("tokens must not be negative")
        layout = WindowLayout(order, vocab_size or int(tokens.max(initial=0)) + 1)
        builder = NgramBuilder(layout)
        builder.add(*layout.distinct(layout.windows(tokens, offsets)))
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "ngram"
            builder.write(path, fingerprint=fingerprint)
            return cls(np.fromfile(path, np.uint8))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, checksums: bool = True) -> Self:
        """Memory-maps a file written by `NgramBuilder.write` or `save`.

        Args:
          path: the file. It must not be modified while the model is in use; replacing it, as `save`
            and `write` do, is safe.
          checksums: read the whole file once, to detect damage and to have it in memory before the
            first search.

        Raises:
          UserError: the file is missing, damaged or another kind of file.
        """
        try:
            return cls(np.asarray(np.memmap(path, np.uint8, "r")), checksums=checksums)
        except FileNotFoundError:
            raise UserError(f"no n-gram model at {path}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read n-gram model {path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically."""
        with writing(path) as part:
            self.file.tofile(part)

    def __repr__(self) -> str:
        count, size = sum(self.header["ngrams"]), self.file.nbytes / 1e6
        return f"NgramModel({count:,} n-grams of up to {self.order} tokens, {size:,.1f} MB)"

    @property
    def order(self) -> int:
        """The length of the longest n-grams; the longest context has one token less."""
        return self.header["order"]

    @property
    def vocab_size(self) -> int:
        """Tokens are below this."""
        return self.header["vocab_size"]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of distinct n-grams of 1, 2, .. `order` tokens."""
        return tuple(self.header["ngrams"])

    @property
    def exact(self) -> bool:
        """True if no n-gram was dropped and all counts are exact."""
        return not self.header["precision"] and not any(self.header["dropped"])

    @property
    def fingerprint(self) -> bytes:
        """`tokenizer_fingerprint` of the tokenizer it was counted with; zeros if unknown."""
        return self.header["fingerprint"]

    @property
    def levels(self) -> tuple[Level, ...]:
        """All n-grams, decoded into arrays of about 12 bytes per n-gram.

        Raises:
          ValueError: the file is invalid although its checksums match.
        """
        return tuple(Level(*level) for level in self.core.levels())

    def check(self) -> None:
        """Reads every list, as `levels` does, to detect invalid files whose checksums match.

        Searching such a file is safe, but the results are meaningless.

        Raises:
          ValueError: the file is inconsistent.
        """
        self.core.levels()

    def probabilities(self, context: ArrayLike, candidates: ArrayLike) -> NDArray[np.float32]:
        """Returns each candidate's count after the context, divided by the context's own count.

        Each candidate uses the longest suffix of the context, of at most `order - 1` tokens, that
        it was seen after; 0 if there is none.

        Args:
          context: integers [n], any n; -1 is a token that no n-gram contains.
          candidates: integers [k].

        Returns:
          float32 [k]. Not a distribution: there is no discounting.
        """
        return self.core.probabilities(_token_array(context), _token_array(candidates))

    def continuations(self, context: ArrayLike) -> list[Continuations]:
        """Returns what followed each suffix of a context, integers [n], the shortest suffix first.

        There are at most `order - 1` suffixes; suffixes that were never seen are left out.
        """
        tokens = _token_array(context)
        return [
            Continuations(tuple(tokens[-n:].tolist()), *counts)
            for n, counts in enumerate(self.core.continuations(tokens), start=1)
        ]

    def lossy(
        self,
        path: str | os.PathLike[str],
        *,
        min_counts: Sequence[int] = (),
        precision: int | None = None,
    ) -> None:
        """Writes a smaller model, as `NgramBuilder.write` with these arguments.

        Raises:
          UserError: as there, or this model is not exact: its own losses would not be recorded.
        """
        check_lossy(self.order, min_counts, precision)
        if not self.exact:
            raise UserError(
                "the n-gram model has lost counts already; make the smaller one from the exact one"
            )
        with writing(path) as part:
            self.core.write(str(part), min_counts=list(min_counts), precision=precision or 0)


def is_ngram_file(path: Path) -> bool:
    """Returns whether a file begins with the magic bytes of n-gram files."""
    with path.open("rb") as file:
        return file.read(len(_core.MAGIC)) == _core.MAGIC


def _token_array(tokens: ArrayLike) -> NDArray[np.int32]:
    """Converts tokens to int32 [n]; raises ValueError for values that do not fit."""
    array = np.asarray(tokens)
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"tokens must be integers [n], got {array.dtype} {list(array.shape)}")
    limits = np.iinfo(np.int32)
    if array.min() < limits.min or array.max() > limits.max:
        raise ValueError("tokens must fit 32 bits")
    return np.ascontiguousarray(array, np.int32)
