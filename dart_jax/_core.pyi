"""The C++ core, bound to Python in `native/bind_ngram.cpp`, `native/bind_search.cpp`,
`native/bind_text.cpp` and `native/bind_cpu.cpp`.

Every array must have the given dtype and, unless stated otherwise, be C-contiguous; inputs are not
converted or copied. Raises `ValueError` if a dtype, a shape, a parameter or an array's content is
wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_ORDER: int
MAGIC: bytes
MAX_VOCABULARY: int

# The search and a model's layers as foreign functions for XLA, by their names; empty if built
# without jaxlib's headers.
cpu_ffi_handlers: dict[str, object]

def call_in_programs(
    function: Callable[[int, list[NDArray[Any]], list[NDArray[Any]]], None],
) -> None:
    """Set what the foreign function `dart_python` calls: a function of its first argument, an int32
    scalar, of its other arguments, and of its results, which the function writes; int32 or uint32,
    and only valid during the call. Missing if built without jaxlib's headers."""

# The instructions that they are computed with on this processor.
instructions: Literal[
    "portable",
    "AVX2",
    "AVX-512",
    "AVX-512 VNNI",
    "AVX-512 VNNI and BF16",
    "NEON",
    "NEON dot products",
]
# Types of weights in tiles, by GGUF's names, and their numbers.
weight_types: dict[str, int]

_UInt8: TypeAlias = NDArray[np.uint8]
_UInt16: TypeAlias = NDArray[np.uint16]
_UInt32: TypeAlias = NDArray[np.uint32]
_UInt64: TypeAlias = NDArray[np.uint64]
_Int32: TypeAlias = NDArray[np.int32]
_Int64: TypeAlias = NDArray[np.int64]
_Float32: TypeAlias = NDArray[np.float32]

# token, count, child_begin: see native/include/dart/ngram_levels.h
_Level: TypeAlias = tuple[_Int32, _Int64, _Int64]

def tile_bytes(type: str, inputs: int) -> int:
    """Returns the size of a tile of blocks; raises ValueError if there is no such type, or `inputs`
    is no multiple of its blocks."""

def pack_blocks(type: str, rows: _UInt8, tiles: _UInt8, threads: int) -> int:
    """Stores blocks of a GGUF file, rows [out, bytes], in tiles [ceil(out / 32), tile_bytes];
    returns how many weights are not finite. Without holding the GIL."""

def pack_q8_0(weights: _Float32, tiles: _UInt8, threads: int) -> None:
    """Rounds weights [out, in] to Q8_0, in tiles [ceil(out / 32), tile_bytes]. Without holding the
    GIL."""

def perfect_hash(first: _Int32, second: _Int32) -> tuple[int, _UInt16, _Int32]:
    """Returns a perfect hash of pairs of integers [n], all different (see
    native/include/dart/perfect_hash.h), made without holding the GIL: the size of the table, the
    buckets' seeds, and the keys' places [n]."""

class NgramModel:
    """Reads the bytes of an n-gram file in place and keeps them alive; they must not change."""

    def __init__(self, file: _UInt8, checksums: bool = True) -> None:
        """`checksums`: also verify the sections' checksums, which reads the whole file."""

    def header(self) -> dict[str, Any]:
        """Returns the fields of docs/ngram-format.md: version, order, precision, vocab_size, tokens
        and fingerprint; per n-gram length, the lists ngrams, dropped and min_count; and the section
        sizes list_bytes and unigram_bytes."""

    def levels(self) -> list[_Level]:
        """Decode all n-grams, and raise if a list is invalid, without holding the GIL."""

    def write(self, path: str, *, min_counts: Sequence[int], precision: int) -> None:
        """Write the n-grams to another file, as `NgramBuilder.write`."""

    def continuations(self, context: _Int32) -> list[tuple[int, _Int32, _Int64]]:
        """For each suffix of the context [n] that was seen, shortest first: its count, the tokens
        that followed it, ascending, and the count of each."""

    def probabilities(self, context: _Int32, candidates: _Int32) -> _Float32:
        """Returns the probabilities of candidates [k], in any order, after a context [n]."""

class NgramBuilder:
    """Builds an n-gram file from sorted windows (dart_jax/ngram/windows.py)."""

    def __init__(self, order: int, vocab_size: int, scratch: str = "") -> None:
        """`scratch`: directory for temporary files, removed by the caller; empty: all in memory."""

    def add(self, windows: _UInt64, counts: _Int64) -> None:
        """Add windows [n, W] with their counts [n], without holding the GIL."""

    def write(
        self, path: str, *, fingerprint: bytes, min_counts: Sequence[int], precision: int
    ) -> None:
        """Write the file, without holding the GIL; can be called once.

        Args:
          path: the file.
          fingerprint: 32 bytes.
          min_counts: [order], ascending, or empty.
          precision: significant bits of a count; 0 keeps all.
        """

class ReferenceTrieParser:
    """Reads a trie of the reference (see native/include/dart/reference_trie.h).

    The message of every `ValueError` continues "<file> ...".
    """

    def __init__(self, header: _UInt8, file_size: int, vocab_size: int) -> None:
        """`header`: the first 16 bytes, fewer if the file is shorter."""

    @property
    def order(self) -> int: ...
    def feed(self, bytes: _UInt8) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Parse the next bytes [n], without holding the GIL; returns the nodes they complete.

        Returns:
          Columns of the leaves and of the nodes with children, without the root, each [nodes]:
          parent uint64, token int32, count int32 and, for nodes with children, id uint64.
        """

    def finish(self) -> None:
        """Check the file as a whole; must be called after its last byte."""

class TreeSearch:
    """The tree search (see native/include/dart/tree_search.h); keeps `ngram` alive."""

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
        threads: int = 1,
    ) -> None: ...
    @property
    def seconds(self) -> float:
        """Total wall time of all searches so far."""

    @property
    def handle(self) -> int:
        """An int32 by which compiled programs find the search; unique in this process, and never
        used again."""

    def search(
        self,
        packed: _Int32,
        out: _Int32,
        *,
        context: int,
        levels: int,
        candidates: int,
        pairs: bool = False,
        draws: bool = False,
    ) -> None:
        """Write the tree of every row to `out`, without holding the GIL.

        Args:
          packed: [B, width], see `DraftBatch` in native/include/dart/tree_search.h. The columns are
            the context [C], the newest tokens, padded with -1 on the left, of which the last is the
            tree's root (a row whose root is negative gets an empty tree); the candidates' tokens
            [d, k] (negative ones are skipped) and the bits of their float32 logits [d, k] (those
            that are not finite are skipped); then as follows.
          out: [B, 4, nodes + 1] tokens, parents, depths, and the bits of float32 scores. Index 0
            is the root, its own parent; nodes follow by descending score; unused places are zero.
          context: C.
          levels: d.
          candidates: k; with 0 only the n-gram model drafts.
          pairs: whether the bits of pair scores follow, [d - 1, k, k]: [l - 1, a, b] is that of
            candidate a of level l - 1 and candidate b of level l. Those not finite count as 0.
          draws: whether the last four columns say how the target draws, for drafting with only the
            n-gram model.
        """

def text_tree(
    tokens: _Int32,
    out: _Int32,
    *,
    depth: int,
    trust: _Float32,
    base: _Int32 | None = None,
    draws: _Int32 | None = None,
) -> None:
    """Write the tree that a text drafts, alone or with a drafter's, to `out`, without holding the
    GIL; the formula is in native/include/dart/text_search.h.

    Args:
      tokens: [n], the last one is the root; negative ones are none.
      out: [4, nodes + 1], as of `TreeSearch.search`.
      depth: of followers that are not in the base, at most.
      trust: [16], how far matches are to be trusted, by length from 1 on, from 0 to 1.
      base: [4, M], the drafter's tree after the same root.
      draws: [4], how the target draws; see `DraftRow` in native/include/dart/tree_search.h.
    """

def count_followers(tokens: _Int32, first: int, counts: _UInt32) -> None:
    """Add to `counts` [16, 2], without holding the GIL, how many of the tokens [n] from place
    `first` on came after a match of the tokens before them, by the longest match's length from 1
    on, and how many of these are followers of a match."""
