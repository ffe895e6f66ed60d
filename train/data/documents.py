"""The documents of a corpus, in a fixed order.

A record (see `dart_jax.data.records`) holds a text or a chat; a file of plain text is one document.
A chat is a list of messages, `{"role": .., "content": ..}`, which a chat template renders as text.
Text beyond `LONGEST` characters is cut at line ends into pieces, which are encoded and counted
separately, so that memory does not depend on the corpus (except for single records, which are read
whole). Empty documents are skipped.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from dart_jax.data.records import PARQUET, fingerprint, is_text, kind, open_text, records
from dart_jax.errors import UserError

LONGEST = 2**18  # characters; encoding needs about 100 bytes per character

# Messages -> text; raises if the template rejects them.
ChatTemplate = Callable[[list[dict[str, Any]]], str]


class Document(NamedTuple):
    """One document, or a piece of a long one.

    Attributes:
      text: UTF-8.
      chat: rendered by a chat template, with all special tokens except the end of the document.
      first: whether it begins the document.
      last: whether it ends the document.
    """

    text: bytes
    chat: bool = False
    first: bool = True
    last: bool = True


class Position(NamedTuple):
    """A place between two documents.

    Attributes:
      file: index of a file.
      document: number of documents of that file before this place.
      read: bytes of all files before this place, as stored on disk.
    """

    file: int
    document: int
    read: int


START = Position(0, 0, 0)


class Unit(NamedTuple):
    """Documents that are counted together.

    Attributes:
      number: from 0, in the corpus's order.
      documents: at least one.
      end: where the next unit begins.
    """

    number: int
    documents: list[Document]
    end: Position


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Files and how to read them.

    Attributes:
      files: the files, in reading order.
      field: field of the records; None uses `messages` if a record has it, else `text`.
      template: chat template, if there is one.
      memory: bytes that reading Parquet may use.
    """

    files: tuple[Path, ...]
    field: str | None = None
    template: ChatTemplate | None = None
    memory: int = PARQUET

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.files)

    def fingerprint(self) -> str:
        """Identifies the state of the files by their names, sizes and modification times."""
        return fingerprint(self.files)

    def documents(self, start: Position = START) -> Iterator[tuple[Document, Position]]:
        """Yields every document from `start` on, and the position after it.

        Raises:
          UserError: a file cannot be read or a record is invalid; says where.
        """
        before = sum(path.stat().st_size for path in self.files[: start.file])
        for number, path in enumerate(self.files[start.file :], start.file):
            skipped = start.document if number == start.file else 0
            for i, (document, read) in enumerate(self._read(path)):
                if i >= skipped:
                    yield document, Position(number, i + 1, before + read)
            before += path.stat().st_size

    def units(
        self,
        size: int,
        *,
        start: Position = START,
        first: int = 0,
        limit: int | None = None,
    ) -> Iterator[Unit]:
        """Groups the documents into units of about `size` bytes, without cutting documents.

        Args:
          size: a unit ends with the document that reaches this size.
          start: where to begin.
          first: number of the first unit.
          limit: maximum number of documents.
        """
        if limit == 0:
            return
        documents: list[Document] = []
        held, end = 0, start
        for count, (document, end) in enumerate(self.documents(start), 1):
            documents.append(document)
            held += len(document.text) + 64  # its memory besides the text
            if held >= size or count == limit:
                yield Unit(first, documents, end)
                documents, held, first = [], 0, first + 1
            if count == limit:
                return
        if documents:
            yield Unit(first, documents, end)

    def _read(self, path: Path) -> Iterator[tuple[Document, int]]:
        """Yields documents, each with the number of bytes of the file read so far."""
        if is_text(path):
            with open_text(path) as (text, raw):
                for document in _pieces(text):
                    yield document, raw.tell()
            return

        def column(names: list[str]) -> list[str]:
            return [self._field(names, str(path))]

        for record in records(path, columns=column, memory=self.memory):
            value = self._select(record.value, record.where)
            for document in self._content(value, record.where):
                yield document, record.read

    def _select(self, record: Any, where: str) -> Any:
        """Returns a record's value in the selected field."""
        if isinstance(record, str):
            return record
        if not isinstance(record, dict):
            raise UserError(f"{where}: a record must be an object, not {kind(record)}")
        field = self._field(record, where)
        return record[field]

    def _field(self, names: Iterable[str], where: str) -> str:
        names = list(names)
        field = self.field or ("messages" if "messages" in names else "text")
        if field not in names:
            has = ", ".join(map(str, names[:8])) or "none"
            raise UserError(f"{where}: no field {field!r}; name one with --field (it has {has})")
        return field

    def _content(self, value: Any, where: str) -> Iterator[Document]:
        """Yields the documents in a field's value: a text, a chat, or nothing."""
        if value is None:
            return
        if isinstance(value, str):
            text, chat = value, False
        elif isinstance(value, list):
            text, chat = self._render(value, where), True
        else:
            raise UserError(f"{where}: expected a text or a list of messages, got {kind(value)}")
        yield from _pieces(io.StringIO(text, newline=""), chat)

    def _render(self, messages: list[Any], where: str) -> str:
        if self.template is None:
            raise UserError(
                f"{where}: messages need a chat template, and the tokenizer has none; pass the "
                "directory of a tokenizer with one, or --field with a field that holds text"
            )
        for message in messages:
            if not isinstance(message, dict) or "role" not in message:
                raise UserError(f"{where}: every message must be an object with a role")
        # Parquet fills missing fields with None; but a None content is valid, next to tool calls.
        messages = [
            {
                name: value
                for name, value in message.items()
                if value is not None or name == "content"
            }
            for message in messages
        ]
        try:
            return self.template(messages)
        except Exception as error:  # a template may raise anything
            raise UserError(f"{where}: the chat template rejects the messages: {error}") from None


def cut(stream: TextIO) -> Iterator[str]:
    """Cuts a text into pieces of at most `LONGEST` characters, after line ends where possible."""
    rest = ""
    while len(text := rest + stream.read(LONGEST - len(rest))) == LONGEST:
        end = text.rfind("\n") + 1 or LONGEST
        yield text[:end]
        rest = text[end:]
    if text:
        yield text


def _pieces(stream: TextIO, chat: bool = False) -> Iterator[Document]:
    """Yields a text as one document, or in pieces if it is long; nothing if it is empty."""
    first = True
    previous = ""
    for piece in cut(stream):
        if previous:
            yield _document(previous, chat, first, False)
            first = False
        previous = piece
    if previous:
        yield _document(previous, chat, first, True)


def _document(text: str, chat: bool, first: bool, last: bool) -> Document:
    # JSON can hold unpaired surrogates, which tokenizers reject.
    return Document(text.encode(errors="replace"), chat, first, last)
