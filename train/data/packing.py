"""Packs documents into rows of a fixed length, with little padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from train.data.batch import Batch
from train.data.encoding import Encoded

# Rows kept open for a document that fits: more of them leave less padding, but spread neighbouring
# documents further apart.
_OPEN = 128


@dataclasses.dataclass
class Statistics:
    """Statistics of the packing.

    Attributes:
      documents: packed documents, where each piece of a long text counts.
      tokens: tokens of those documents.
      supervised: supervised ones of those tokens.
      rows: number of rows.
      truncated: documents cut off at their end.
      dropped: documents left out because they had no supervised tokens.
    """

    documents: int = 0
    tokens: int = 0
    supervised: int = 0
    rows: int = 0
    truncated: int = 0
    dropped: int = 0


class Packer:
    """Packs documents into rows, deterministically.

    Each document goes into the fullest open row that has room for it; if none has, the fullest row
    is closed. Texts longer than a row are cut into consecutive pieces; documents with
    `Encoded.whole` are truncated.

    Attributes:
      context: tokens per row.
      statistics: of the closed rows.
    """

    def __init__(self, context: int):
        self.context = context
        self.statistics = Statistics()
        self._rows: list[list[Encoded]] = [[] for _ in range(_OPEN)]
        self._room = np.full(_OPEN, context)

    def add(self, document: Encoded) -> Iterator[Batch]:
        """Packs a document; yields the rows that this closes, of a batch without its first axis."""
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

    def rest(self) -> Iterator[Batch]:
        """Yields the rows that are still open."""
        for n, row in enumerate(self._rows):
            if row:
                yield self._close(n)

    def _close(self, n: int) -> Batch:
        row = _row(self._rows[n], self.context)
        self.statistics.documents += len(self._rows[n])
        self.statistics.tokens += self.context - int(self._room[n])
        self.statistics.supervised += int(row.supervised.sum())
        self.statistics.rows += 1
        self._rows[n], self._room[n] = [], self.context
        return row


def _pieces(document: Encoded, context: int, statistics: Statistics) -> Iterator[Encoded]:
    """Yields the pieces of a document to pack."""
    length = len(document.tokens)
    if document.whole and length > context:
        statistics.truncated += 1
        length = context
    for begin in range(0, length, context):
        part = slice(begin, min(begin + context, length))
        supervised = document.supervised[part].copy()
        supervised[0] = False  # nothing before it predicts it
        if supervised.any():
            yield Encoded(document.tokens[part], supervised, document.whole)
        elif begin == 0:
            statistics.dropped += 1


def _row(documents: list[Encoded], context: int) -> Batch:
    row = Batch(np.zeros(context, np.int32), np.zeros(context, np.int32), np.zeros(context, bool))
    begin = 0
    for number, (tokens, supervised, _) in enumerate(documents, 1):
        part = slice(begin, begin + len(tokens))
        row.tokens[part], row.document[part], row.supervised[part] = tokens, number, supervised
        begin = part.stop
    return row
