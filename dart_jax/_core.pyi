"""The C++ core, as `native/bindings.cpp` exposes it.

Every array must be C-contiguous, unless its description says otherwise, and of the dtype given;
nothing is converted or copied on the way in. Raises `ValueError` where a dtype, a shape, a
parameter or an array's content is wrong.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_ORDER: int
MAGIC: bytes
MAX_VOCABULARY: int

# The search as a foreign function of XLA, which is handed a `SearchHandle`'s value; None if built
# without jaxlib's headers.
ffi_handler: object | None

_UInt8: TypeAlias = NDArray[np.uint8]
_UInt64: TypeAlias = NDArray[np.uint64]
_Int32: TypeAlias = NDArray[np.int32]
_Int64: TypeAlias = NDArray[np.int64]
_Float32: TypeAlias = NDArray[np.float32]
_Float64: TypeAlias = NDArray[np.float64]

# token, count, child_begin: see native/include/dart/ngram_levels.h
_Level: TypeAlias = tuple[_Int32, _Int64, _Int64]

def write_levels(
    levels: Sequence[_Level],
    path: str,
    *,
    vocab_size: int,
    fingerprint: bytes,
    min_counts: Sequence[int],
    precision: int,
) -> None:
    """Write an n-gram file (see `NgramBuilder.write`), without holding the GIL."""

class NgramModel:
    """Reads the bytes of an n-gram file in place and keeps them alive; they must not change."""

    def __init__(self, file: _UInt8, checksums: bool = True) -> None:
        """`checksums`: compare those of the sections too, which takes reading all of the file."""

    def header(self) -> dict[str, Any]:
        """The fields of docs/ngram-format.md: version, order, precision, vocab_size, tokens and
        fingerprint; lists by length ngrams, dropped and min_count; and the sections' sizes,
        list_bytes and unigram_bytes."""

    def check(self) -> None:
        """Read every list and find those made wrong, without holding the GIL."""

    def levels(self) -> list[_Level]:
        """Decode all n-grams, without holding the GIL."""

    def continuations(self, context: _Int32) -> list[tuple[int, _Int32, _Int64]]:
        """Of every known suffix of the context [n], the shortest first: its count, the tokens that
        followed it, ascending, and how often each did."""

    def probabilities(self, context: _Int32, candidates: _Int32) -> _Float32:
        """The probabilities of candidates [k] in any order after a context [n]."""

class NgramBuilder:
    """Takes sorted windows (dart_jax/ngram/windows.py) and writes an n-gram file."""

    def __init__(self, order: int, vocab_size: int, scratch: str = "") -> None:
        """`scratch`: directory for temporary files, which the caller removes; empty: in memory."""

    def add(self, windows: _UInt64, counts: _Int64) -> None:
        """Take windows [n, W] with their counts [n], without holding the GIL."""

    def write(
        self, path: str, *, fingerprint: bytes, min_counts: Sequence[int], precision: int
    ) -> None:
        """Write the file, once, without holding the GIL.

        Args:
          path: of the file.
          fingerprint: 32 bytes.
          min_counts: [order], ascending, or empty.
          precision: significant bits of a count; 0 keeps all.
        """

class ReferenceTrieParser:
    """Reads a trie of the reference (see native/include/dart/reference_trie.h).

    Every `ValueError` continues "<file> ..".
    """

    def __init__(self, header: _UInt8, file_size: int, vocab_size: int) -> None:
        """`header`: [16] the first bytes, fewer where the file has fewer."""

    @property
    def order(self) -> int: ...
    @property
    def nodes(self) -> int:
        """Of the whole file, the root included."""

    def feed(self, bytes: _UInt8) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Take the next bytes [n], without holding the GIL, and give the nodes they complete.

        Returns:
          Columns, each [nodes], of leaves and of nodes with children, but for the root: parent
          uint64, token int32, count int32, and for nodes with children id uint64.
        """

    def finish(self) -> None:
        """Check the file as a whole, after its last byte."""

class TreeSearch:
    """The draft tree's search (see native/include/dart/tree_search.h); keeps `ngram` alive."""

    # Wall time of all searches so far.
    seconds: float

    def __init__(
        self,
        ngram: NgramModel | None,
        *,
        nodes: int,
        beam: int = 20,
        level_decay: float = 0.7,
        logit_decay: float = 0.9,
        ngram_weight: float = 0.5,
        eps: float = 1e-10,
        eos: Sequence[int] = (),
        ties: Literal["first", "compat"] = "first",
        threads: int = 1,
    ) -> None: ...
    def search(self, context: _Int32, tokens: _Int32, logits: _Float32, out: _Int32) -> None:
        """Write the tree of every row to `out`, without holding the GIL.

        All but `out` need be contiguous within a row only.

        Args:
          context: [B, C] the newest known tokens, absent ones -1 on the left. The last is the
            tree's root; a row whose root is negative gets an empty tree.
          tokens: [B, d, k] the drafted candidates of each level; negative ones are left out. With
            k = 0 the n-gram model drafts alone, up to d levels.
          logits: [B, d, k] theirs, in any order; candidates without a finite logit are left out.
          out: [B, 3, nodes + 1] tokens, parents and depths. Place 0 is the root, its own parent;
            nodes follow by depth, then, unless `ties` is "compat", by descending score; what is
            left over is zero.
        """

    def timed_search(
        self, context: _Int32, tokens: _Int32, logits: _Float32, out: _Int32
    ) -> _Float64:
        """The same row after row. Returns the seconds each took, [B]."""

class SearchHandle:
    """Keeps a search alive and known by a number, which a compiled program takes as an argument."""

    def __init__(self, search: TreeSearch) -> None: ...
    @property
    def value(self) -> int:
        """An int32 that no other search of this process has had."""
