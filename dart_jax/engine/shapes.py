"""Shapes that programs are compiled for: few numbers of rows, tree sizes, chunks and table
widths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

# A table has at most this many times the places that are needed, and so has a chunk.
STEP = 4

# Rows that take as long as what a chunk takes on a CPU beside its rows: on two cores of a Xeon
# smollm2's take 9 ms and 1.2 ms for each row, the demo's 1.5 and 0.2 ms.
_CHUNK_ROWS = 8

# The same on an accelerator, which waits for its weights.
_CHUNK_ROWS_ELSEWHERE = 256

# Nodes that programs of one row, whose steps verify as many as pay, mostly have room for: drafts of
# eight positions, of which few pay, take a tenth of a step more.
_FEW_NODES = 4


def stepwise_sizes(most: int) -> tuple[int, ...]:
    """The tree sizes of programs whose steps decide how many nodes they verify, ascending from 0.

    Args:
      most: the largest.
    """
    return tuple(sorted({0, min(_FEW_NODES, most), most}))


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of one runner's programs.

    Attributes:
      slots: requests that are decoded together, at most, by all groups of devices.
      groups: groups of devices, which have as many slots each.
      max_length: of a prompt and its new tokens together.
      page: rows of a page.
      pages_each: pages of the longest text, and of the rows that a step writes beyond it.
      rows: numbers of rows of a group's steps, ascending.
      sizes: tree sizes by number of rows, ascending from 0.
      fixed: whether steps have trees of the largest size only.
      stepwise: whether steps of one row decide themselves how many nodes they verify.
      chunks: numbers of tokens of a prompt that are read at a time, ascending.
      only_used: whether reading a prompt takes time only for the rows of a chunk that are used.
      together: whether more rows of a chunk cost little: several prompts are read at a time, as
        many as fill the longest chunk.
      steps: steps of a burst, at most.
      stop_ids: ids that end a text, at most.
      bounded: whether attention reads all pages of a table, so that tables should be narrow; the
        kernels read the pages that are used.
    """

    slots: int
    groups: int
    max_length: int
    page: int
    pages_each: int
    rows: tuple[int, ...]
    sizes: dict[int, tuple[int, ...]]
    fixed: bool
    stepwise: bool
    chunks: tuple[int, ...]
    only_used: bool
    together: bool
    steps: int
    stop_ids: int
    bounded: bool

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree."""
        return max(each[-1] for each in self.sizes.values())

    def rows_for(self, sequences: int) -> int:
        """Rows of a step of so many sequences of a group."""
        return next(n for n in self.rows if n >= sequences)

    def fewer_rows(self, rows: int) -> int:
        """The next smaller number of rows; 0 if there is none."""
        return max((n for n in self.rows if n < rows), default=0)

    @property
    def chunk_rows(self) -> int:
        """Rows that take as long as what a chunk takes beside its rows, about."""
        return _CHUNK_ROWS_ELSEWHERE if self.together else _CHUNK_ROWS

    def longest_chunk(self, rows: int) -> int:
        """The longest chunk of so many rows, if there is one, or else the shortest of all."""
        return max((n for n in self.chunks if n <= rows), default=self.chunks[0])

    def chunk_for(self, tokens: int) -> int:
        """Tokens of the next chunk, such that so many are read the soonest."""
        enough = next((n for n in self.chunks if n >= tokens), self.chunks[-1])
        if self.together or tokens >= self.chunks[-1]:
            return enough
        fewer = max((n for n in self.chunks if n < tokens), default=enough)
        return min(enough, fewer, key=lambda first: self._cost(tokens, first))

    def _cost(self, tokens: int, first: int) -> int:
        """The cost of reading so many tokens with such a chunk first, in rows."""
        rest = tokens - first
        others = self._cost(rest, self.chunk_for(rest)) if rest > 0 else 0
        return first + _CHUNK_ROWS + others

    def prompts_for(self, chunk: int) -> int:
        """Prompts of a group of which chunks of a length are read together, at most."""
        most = min(self.chunks[-1] // chunk, self.slots // self.groups)
        return max(most, 1) if self.together else 1

    def width(self, pages: int) -> int:
        """Columns of the tables of a step, of which no sequence uses more than so many."""
        return next(n for n in self.widths if n >= pages)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of columns of tables, ascending."""
        return up_to(self.pages_each) if self.bounded else (self.pages_each,)

    def filled(self, start: int) -> int:
        """Rows in which those before a chunk are found, see `ChunkShape`."""
        pages = -(-start // self.page)
        return self.page * (self.width(pages) if pages else 0 if self.bounded else self.pages_each)

    @property
    def reads(self) -> Iterator[tuple[int, int]]:
        """Chunks and their starts, such that all programs that read one prompt are run once."""
        starts = (0, *(n * self.page for n in self.widths)) if self.bounded else (0,)
        for rows in self.chunks:
            for start in starts:
                yield rows, start


def up_to(most: int, step: int = STEP) -> tuple[int, ...]:
    """1 and its multiples by powers of `step`, up to `most`, which is the last."""
    numbers = [1]
    while numbers[-1] < most:
        numbers.append(min(numbers[-1] * step, most))
    return tuple(numbers)
