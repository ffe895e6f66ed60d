"""Documents laid into rows of one length, one behind the other, with few holes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from train.data.encoding import Encoded

# Rows that wait for a document that fits: with more of them fewer holes stay, and what is next in
# the data lies further apart.
_OPEN = 128


class Row(NamedTuple):
    """One row of a `Batch`.

    Attributes:
      tokens: int32 [T]; 0 where the row is padded.
      document: int32 [T], from 1; 0 where the row is padded.
      supervised: bool [T].
    """

    tokens: np.ndarray
    document: np.ndarray
    supervised: np.ndarray


@dataclasses.dataclass
class Statistics:
    """What was packed, and what was not.

    Attributes:
      documents: that lie in rows, pieces of a long text counted each.
      tokens: of those documents.
      supervised: of those tokens.
      rows: that they fill.
      truncated: documents that lost their end.
      dropped: documents of which nothing supervised was left.
    """

    documents: int = 0
    tokens: int = 0
    supervised: int = 0
    rows: int = 0
    truncated: int = 0
    dropped: int = 0


class Packer:
    """Fills rows; the same ones for the same documents.

    Each document goes into the fullest open row that has room for it; where none has, the fullest
    is closed. Texts longer than a row are cut into consecutive pieces, of what is whole only the
    beginning is kept.

    Attributes:
      context: tokens a row.
      statistics: of the rows that are closed.
    """

    def __init__(self, context: int):
        self.context = context
        self.statistics = Statistics()
        self._rows: list[list[Encoded]] = [[] for _ in range(_OPEN)]
        self._room = np.full(_OPEN, context)

    def add(self, document: Encoded) -> Iterator[Row]:
        """The rows that this closes."""
        for piece in _pieces(document, self.context, self.statistics):
            length = len(piece.tokens)
            fits = self._room >= length
            if fits.any():
                chosen = int(np.where(fits, self._room, self.context + 1).argmin())
            else:
                chosen = int(self._room.argmin())
                yield self._close(chosen)
            self._rows[chosen].append(piece)
            self._room[chosen] -= length

    def rest(self) -> Iterator[Row]:
        """The rows that are still open."""
        for n, row in enumerate(self._rows):
            if row:
                yield self._close(n)

    def _close(self, n: int) -> Row:
        row = _row(self._rows[n], self.context)
        self.statistics.documents += len(self._rows[n])
        self.statistics.tokens += self.context - int(self._room[n])
        self.statistics.supervised += int(row.supervised.sum())
        self.statistics.rows += 1
        self._rows[n], self._room[n] = [], self.context
        return row


def _pieces(document: Encoded, context: int, statistics: Statistics) -> Iterator[Encoded]:
    """What of a document goes into rows."""
    length = len(document.tokens)
    if document.whole and length > context:
        statistics.truncated += 1
        length = context
    for begin in range(0, length, context):
        part = slice(begin, min(begin + context, length))
        supervised = document.supervised[part].copy()
        supervised[0] = False  # nothing before it could predict it
        if supervised.any():
            yield Encoded(document.tokens[part], supervised, document.whole)
        elif begin == 0:
            statistics.dropped += 1


def _row(documents: list[Encoded], context: int) -> Row:
    row = Row(np.zeros(context, np.int32), np.zeros(context, np.int32), np.zeros(context, bool))
    begin = 0
    for number, (tokens, supervised, _) in enumerate(documents, 1):
        part = slice(begin, begin + len(tokens))
        row.tokens[part], row.document[part], row.supervised[part] = tokens, number, supervised
        begin = part.stop
    return row
