"""The C++ core, as `native/bindings.cpp` exposes it.

Every array must be C-contiguous and of the dtype given; nothing is converted or copied on the way
in. Raises `ValueError` where a dtype, a shape, a parameter or an array's content is wrong.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_ORDER: int

_Int32: TypeAlias = NDArray[np.int32]
_Int64: TypeAlias = NDArray[np.int64]
_Float32: TypeAlias = NDArray[np.float32]

# token, count, child_begin: see native/include/dart/ngram_model.h
_Level: TypeAlias = tuple[_Int32, _Int64, _Int64]

def count_ngrams(tokens: _Int32, offsets: _Int64, order: int) -> list[_Level]:
    """Count n-grams of 1 to `order` tokens; document i is `tokens[offsets[i]:offsets[i + 1]]`."""

class NgramModel:
    """Reads the levels' arrays in place and keeps them alive; they must not change."""

    def __init__(self, levels: Sequence[_Level]) -> None: ...
    def probabilities(self, context: _Int32, candidates: _Int32) -> _Float32:
        """The candidates' probabilities after the context; the candidates must ascend."""

class ReferenceTrieParser:
    """Reads a trie of the reference (see native/include/dart/reference_trie.h).

    Every `ValueError` continues "<file> ..".
    """

    def __init__(self, header: NDArray[np.uint8], file_size: int, vocab_size: int) -> None:
        """`header`: [16] the first bytes, fewer where the file has fewer."""

    @property
    def order(self) -> int: ...
    @property
    def nodes(self) -> int:
        """Of the whole file, the root included."""

    def feed(self, bytes: NDArray[np.uint8]) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Take the next bytes [n], without holding the GIL, and give the nodes they complete.

        Returns:
          Columns, each [nodes], of leaves and of nodes with children, but for the root: parent
          uint64, token int32, count int32, and for nodes with children id uint64.
        """

    def finish(self) -> None:
        """Check the file as a whole, after its last byte."""

class TreeSearch:
    """The draft tree's search (see native/include/dart/tree_search.h); keeps `ngram` alive."""

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
    ) -> None: ...
    def search(self, context: _Int32, tokens: _Int32, logits: _Float32, out: _Int32) -> None:
        """Write the tree of every row to `out`, without holding the GIL.

        Args:
          context: [B, C] the newest known tokens, absent ones -1 on the left. The last is the
            tree's root; a row whose root is negative gets an empty tree.
          tokens: [B, d, k] the drafted candidates of each level; negative ones are left out.
          logits: [B, d, k] theirs, in any order; candidates without a finite logit are left out.
          out: [B, 3, nodes + 1] tokens, parents and depths. Place 0 is the root, its own parent;
            nodes follow by depth, then by descending score; what is left over is zero.
        """
