"""The documents of a corpus, in one fixed order, whatever files they lie in.

A record (see `dart_jax.data.records`) holds a text or a chat; a file of plain text is one document. A chat
is a list of messages, `{"role": .., "content": ..}`, and becomes text by a chat template. Text
beyond `LONGEST` characters is cut at line ends into pieces, which are encoded and counted by
themselves, so that memory does not depend on the corpus (but for one record, which is read whole).
Empty documents are left out.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from dart_jax.data.records import PARQUET, fingerprint, is_text, kind, open_text, records
from dart_jax.errors import UserError

LONGEST = 2**18  # characters; encoding takes some 100 bytes for each

# Messages -> text; raises if the template refuses them.
ChatTemplate = Callable[[list[dict[str, Any]]], str]


class Document(NamedTuple):
    """One document, or a piece of a long one.

    Attributes:
      text: UTF-8.
      chat: a chat template wrote it, with all special tokens but the end of the document.
      first: it begins the document.
      last: it ends the document.
    """

    text: bytes
    chat: bool = False
    first: bool = True
    last: bool = True


class Position(NamedTuple):
    """A place between two documents.

    Attributes:
      file: index of a file.
      document: how many documents of that file come before.
      read: bytes of all files before this place, as they lie on the disk.
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
      files: in the order they are read.
      field: of the records; None takes `messages` where a record has it, and else `text`.
      template: for chats; None where there is none.
      memory: bytes that reading Parquet may take.
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
        """Tells one state of the files from another by their names, sizes and times."""
        return fingerprint(self.files)

    def documents(self, start: Position = START) -> Iterator[tuple[Document, Position]]:
        """Every document from `start` on, and the place behind it.

        Raises:
          UserError: a file cannot be read or a record is not what it should be; says where.
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
        """The documents in units of about `size` bytes, a document never cut.

        Args:
          size: a unit ends with the document that reaches it.
          start: where to begin.
          first: number of the unit that begins there.
          limit: documents to take at most.
        """
        if limit == 0:
            return
        documents: list[Document] = []
        held, end = 0, start
        for count, (document, end) in enumerate(self.documents(start), 1):
            documents.append(document)
            held += len(document.text) + 64  # what it takes in memory beside its text
            if held >= size or count == limit:
                yield Unit(first, documents, end)
                documents, held, first = [], 0, first + 1
            if count == limit:
                return
        if documents:
            yield Unit(first, documents, end)

    def _read(self, path: Path) -> Iterator[tuple[Document, int]]:
        """Documents, and how many bytes of the file were read by then."""
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
        """What a record holds in the wanted field."""
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
        """The documents in one field: a text, a chat, or nothing."""
        if value is None:
            return
        if isinstance(value, str):
            text, chat = value, False
        elif isinstance(value, list):
            text, chat = self._render(value, where), True
        else:
            raise UserError(f"{where}: neither a text nor a list of messages, but {kind(value)}")
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
        # Parquet fills the fields that a message lacks; none is a content, beside tool calls.
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
            raise UserError(f"{where}: the chat template refuses the messages: {error}") from None


def cut(stream: TextIO) -> Iterator[str]:
    """A text in pieces of at most `LONGEST` characters, cut behind line ends where there are."""
    rest = ""
    while len(text := rest + stream.read(LONGEST - len(rest))) == LONGEST:
        end = text.rfind("\n") + 1 or LONGEST
        yield text[:end]
        rest = text[end:]
    if text:
        yield text


def _pieces(stream: TextIO, chat: bool = False) -> Iterator[Document]:
    """A text as one document, or in pieces if it is long; nothing if it is empty."""
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
    # JSON can hold halves of surrogate pairs, which no tokenizer takes.
    return Document(text.encode(errors="replace"), chat, first, last)
