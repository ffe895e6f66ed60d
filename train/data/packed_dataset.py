"""Documents packed into rows of a fixed length, with little padding; on disk, memory-mapped.

The files of a data set `name` in a directory:

    name.json         metadata
    name.tokens       uint16 or uint32 [rows, context], in the machine's byte order
    name.document     uint8, uint16 or uint32 [rows, context]
    name.supervised   bool [rows, context]
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dart_jax.errors import UserError
from train.data.batch import Batch, TeacherOutputs
from train.data.encoding import Encoded

_CHUNK = 1024  # rows read at a time
# Rows kept open for a document that fits: more of them leave less padding, but spread neighbouring
# documents further apart.
_OPEN = 128


@dataclasses.dataclass
class Statistics:
    """Statistics of the packing; each piece of a long text counts as a document."""

    documents: int = 0
    tokens: int = 0
    supervised: int = 0  # of the tokens
    rows: int = 0
    truncated: int = 0  # documents cut off at their end
    dropped: int = 0  # documents left out because they had no supervised tokens


class Packer:
    """Packs documents into rows of `context` tokens, each into the fullest open row that has room
    for it; if none has, the fullest row is closed. Texts longer than a row are cut into consecutive
    pieces; documents with `Encoded.whole` are truncated. The statistics are of the closed rows."""

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


@dataclasses.dataclass(frozen=True, eq=False)
class PackedDataset:
    """Rows of packed documents, on disk, as the files above hold them; the fingerprint identifies
    their content, and `outputs` are the target's for all, the parts of `TeacherOutputs` by name."""

    tokens: np.ndarray
    document: np.ndarray
    supervised: np.ndarray
    vocab_size: int
    fingerprint: str
    statistics: Statistics
    outputs: Mapping[str, np.memmap] | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.tokens)

    @property
    def context(self) -> int:
        """Tokens per row."""
        return self.tokens.shape[1]

    @classmethod
    def load(cls, directory: Path, name: str) -> PackedDataset:
        """Opens what a `Writer` wrote."""
        metadata = json.loads((directory / f"{name}.json").read_text())
        statistics = Statistics(**metadata["statistics"])
        context, vocab_size = metadata["context"], metadata["vocab_size"]
        shape = statistics.rows, context
        tokens, document, supervised = (
            # An empty file cannot be mapped.
            np.memmap(directory / f"{name}.{field}", dtype, "r", shape=shape)
            if statistics.rows
            else np.empty(shape, dtype)
            for field, dtype in _dtypes(context, vocab_size).items()
        )
        return cls(tokens, document, supervised, vocab_size, metadata["fingerprint"], statistics)

    def batch(self, rows: np.ndarray) -> Batch:
        """Returns the rows with these indices, integers [B]."""
        outputs = None
        if self.outputs is not None:
            outputs = TeacherOutputs(**{name: kept[rows] for name, kept in self.outputs.items()})
        tokens, document = self.tokens[rows].astype(np.int32), self.document[rows].astype(np.int32)
        return Batch(tokens, document, np.array(self.supervised[rows]), outputs)

    def token_counts(self) -> np.ndarray:
        """Counts the supervised occurrences of each token: int64 [vocab_size]."""
        counts = np.zeros(self.vocab_size, np.int64)
        for begin in range(0, self.rows, _CHUNK):
            part = slice(begin, begin + _CHUNK)
            tokens = self.tokens[part][self.supervised[part]]
            counts += np.bincount(tokens, minlength=self.vocab_size)
        return counts

    def __str__(self) -> str:
        s = self.statistics
        fill = s.tokens / max(1, self.rows * self.context)
        words = [
            f"{s.documents:,} documents, {s.tokens:,} tokens, {s.supervised:,} of them supervised",
            f"in {s.rows:,} rows of {self.context:,} ({fill:.1%} full)",
        ]
        if s.truncated:
            words.append(f"{s.truncated:,} truncated to a row")
        if s.dropped:
            words.append(f"{s.dropped:,} without supervised tokens left out")
        return ", ".join(words)


class Writer:
    """Packs documents and appends the rows to the files of a data set."""

    def __init__(self, directory: Path, name: str, context: int, vocab_size: int):
        self.packer = Packer(context)
        self._base = directory / name
        self._vocab_size = vocab_size
        self._dtypes = _dtypes(context, vocab_size)
        self._digest = hashlib.sha256(json.dumps([context, vocab_size]).encode())
        self._open = contextlib.ExitStack()
        self._files = {
            field: self._open.enter_context((directory / f"{name}.{field}").open("wb"))
            for field in self._dtypes
        }

    def add(self, document: Encoded) -> None:
        """Packs a document into a row."""
        for row in self.packer.add(document):
            self._write(row)

    def finish(self) -> None:
        """Writes the remaining rows and the metadata, and flushes all files to disk."""
        for row in self.packer.rest():
            self._write(row)
        metadata = {
            "fingerprint": self._digest.hexdigest(),
            "context": self.packer.context,
            "vocab_size": self._vocab_size,
            "statistics": dataclasses.asdict(self.packer.statistics),
        }
        with self._base.with_name(f"{self._base.name}.json").open("wb") as file:
            file.write(json.dumps(metadata, indent=2).encode())
            for written in (*self._files.values(), file):
                written.flush()
                os.fsync(written.fileno())
        self.close()

    def close(self) -> None:
        """Closes the files, complete or not."""
        self._open.close()

    def _write(self, row: Batch) -> None:
        for field, file in self._files.items():
            data = getattr(row, field).astype(self._dtypes[field]).tobytes()
            self._digest.update(data)
            file.write(data)


def draft_vocabulary(dataset: PackedDataset, size: int) -> np.ndarray:
    """Chooses the draft vocabulary, int32 [size], ascending: the most frequent supervised
    tokens, as in EAGLE-3; ties go to the smaller id. Raises UserError if `size` is not in
    1..vocab_size."""
    if not 1 <= size <= dataset.vocab_size:
        raise UserError(
            f"the draft vocabulary must have 1..{dataset.vocab_size} tokens, got {size}"
        )
    order = np.argsort(-dataset.token_counts(), kind="stable")
    return np.sort(order[:size]).astype(np.int32)


def _dtypes(context: int, vocab_size: int) -> dict[str, np.dtype]:
    """Returns the dtypes of the files, by extension."""
    token = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    return {"tokens": token, "document": np.min_scalar_type(context), "supervised": np.dtype(bool)}


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Every row of the data, with or without the target's outputs, once per epoch, reshuffled in
    each: a function of seed and step only, so that a run's position in the data is its step.
    Each epoch drops the rows that do not fill a whole batch, different ones each time."""

    dataset: PackedDataset
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.dataset.rows:
            raise UserError(
                f"the data fill {self.dataset.rows} rows, a batch needs {self.batch}; lower "
                "--batch-size or --context, or add data"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in the rows."""
        return self.dataset.rows // self.batch

    @property
    def fingerprint(self) -> str:
        """Identifies the data and their order."""
        order = f"Order(rows={self.dataset.rows}, batch={self.batch}, seed={self.seed})"
        return f"{self.dataset.fingerprint}, {order}"

    def order(self, step: int) -> np.ndarray:
        """Returns the rows of a step, int64 [batch]."""
        epoch, index = divmod(step, self.steps_per_epoch)
        rows = _permutation(self.dataset.rows, self.seed, epoch)
        return rows[index * self.batch :][: self.batch]

    def __call__(self, step: int, rows: slice) -> Batch:
        """Returns the given rows of the step's batch."""
        return self.dataset.batch(self.order(step)[rows])


@functools.lru_cache(maxsize=2)  # a prefetching thread may be an epoch ahead
def _permutation(rows: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(rows)
    order.flags.writeable = False
    return order
