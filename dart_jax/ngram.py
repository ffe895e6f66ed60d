"""The n-gram model: counted from token sequences, kept in one file, queried by the tree search."""

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.files import write_atomically

_FORMAT = "dart-ngram"
_VERSION = "1"


class Level(NamedTuple):
    """All n-grams of one length, in lexicographic order of their tokens.

    The children of an n-gram `i`, which are the longer n-grams that it is a prefix of, are
    `child_begin[i]:child_begin[i + 1]` of the next level.
    """

    token: NDArray[np.int32]  # last token of each n-gram
    count: NDArray[np.int64]
    child_begin: NDArray[np.int64]  # [n + 1]; empty at the last level


class NgramModel:
    """Counts of all n-grams of 1 to `order` tokens of a corpus. Immutable."""

    def __init__(self, levels: Sequence[Level]):
        """Takes the arrays over and makes them read-only.

        Raises:
          ValueError: the levels do not form a trie (see native/include/dart/ngram_model.h).
        """
        self.core = _core.NgramModel(levels)
        self.levels = tuple(levels)
        for array in (array for level in levels for array in level):
            array.flags.writeable = False  # the core reads it unchecked from here on

    @classmethod
    def count(cls, documents: Iterable[Sequence[int] | NDArray], order: int = 3) -> Self:
        """Counts the n-grams of token sequences; no n-gram spans two of them.

        Raises:
          ValueError: tokens that are not integers in [0, 2**31), or an order out of [1, 5].
        """
        arrays = [_token_array(document) for document in documents]
        tokens = np.concatenate([np.empty(0, np.int32), *arrays])
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return cls([Level(*level) for level in _core.count_ngrams(tokens, offsets, order)])

    @property
    def order(self) -> int:
        """The length of the longest n-grams; one token less is the longest context."""
        return len(self.levels)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of distinct n-grams of 1, 2, .. `order` tokens."""
        return tuple(len(level.token) for level in self.levels)

    def probabilities(self, context: ArrayLike, candidates: ArrayLike) -> NDArray[np.float32]:
        """Each candidate's count after the context, divided by the context's own count.

        Decided, for each candidate by itself, by the longest suffix of the context, of at most
        `order - 1` tokens, that the candidate was seen after; 0 where there is none.

        Args:
          context: integers [n], any n; -1 is a token that no n-gram has.
          candidates: integers [k].

        Returns:
          float32 [k]. Not a distribution: there is no discounting.
        """
        candidates = _token_array(candidates)
        ascending = np.argsort(candidates)
        result = np.empty(candidates.shape, np.float32)
        result[ascending] = self.core.probabilities(_token_array(context), candidates[ascending])
        return result

    def prune(self, min_counts: Sequence[int]) -> Self:
        """Drops n-grams of n tokens counted less than `min_counts[n - 1]`, with their descendants.

        The counts of what stays do not change.
        """
        if len(min_counts) != self.order:
            raise ValueError(f"need {self.order} minimum counts, got {len(min_counts)}")
        kept = [level.count >= least for level, least in zip(self.levels, min_counts, strict=True)]
        for n in range(1, self.order):
            kept[n] &= np.repeat(kept[n - 1], np.diff(self.levels[n - 1].child_begin))

        levels = []
        for n, (level, keep) in enumerate(zip(self.levels, kept, strict=True)):
            child_begin = level.child_begin
            if n + 1 < self.order:
                children_before = np.concatenate([[0], np.cumsum(kept[n + 1])])
                # A dropped n-gram keeps no children, so the next one begins where it did.
                begin, end = children_before[child_begin[:-1]], children_before[child_begin[-1:]]
                child_begin = np.concatenate([begin[keep], end])
            levels.append(Level(level.token[keep], level.count[keep], child_begin))
        return type(self)(levels)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to one file, which appears whole or not at all."""
        tensors = {
            f"{n}.{name}": _compact(array)
            for n, level in enumerate(self.levels, start=1)
            for name, array in level._asdict().items()
        }
        metadata = {
            "format": _FORMAT,
            "version": _VERSION,
            "order": str(self.order),
            "crc32": _checksum(self.levels),
        }
        write_atomically(Path(path), save(tensors, metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file that `save` wrote.

        Raises:
          UserError: the file is missing, damaged or another kind of file.
        """
        if not Path(path).is_file():
            raise UserError(f"no n-gram model at {path}")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise UserError(f"{path} is not an n-gram model")
                if metadata.get("version") != _VERSION:
                    raise UserError(
                        f"{path} is an n-gram model of version {metadata.get('version')}, "
                        f"this program reads version {_VERSION}"
                    )
                levels = [
                    Level(
                        token=_read(file, f"{n}.token", np.int32),
                        count=_read(file, f"{n}.count", np.int64),
                        child_begin=_read(file, f"{n}.child_begin", np.int64),
                    )
                    for n in range(1, int(metadata["order"]) + 1)
                ]
            if metadata.get("crc32") != _checksum(levels):
                raise ValueError("its checksum does not match")
            return cls(levels)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise UserError(f"cannot read n-gram model {path}: {error}") from error


def _token_array(tokens: ArrayLike) -> NDArray[np.int32]:
    """The tokens as int32 [n], checked rather than wrapped where they do not fit."""
    array = np.asarray(tokens)
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"tokens must be integers [n], got {array.dtype} {list(array.shape)}")
    limits = np.iinfo(np.int32)
    if array.min() < limits.min or array.max() > limits.max:
        raise ValueError("tokens must fit 32 bits")
    return np.ascontiguousarray(array, np.int32)


def _compact(array: NDArray) -> NDArray:
    """The array in the smallest unsigned type that holds its values."""
    return array.astype(np.min_scalar_type(array.max(initial=0)))


def _read(file: safe_open, name: str, dtype: DTypeLike) -> NDArray:
    if not file.get_slice(name).get_dtype().startswith("U"):
        raise ValueError(f"{name} does not hold unsigned integers")
    return file.get_tensor(name).astype(dtype)


def _checksum(levels: Sequence[Level]) -> str:
    """Of the values, however wide the file stores them: the structure alone cannot tell that a
    count is wrong."""
    crc = 0
    for level in levels:
        for array in level:
            crc = zlib.crc32(array.data, crc)
    return f"{crc:08x}"
