"""The documents of a corpus, in a fixed order.

A record holds a chat, which a chat template renders as text, a text, or token ids (see
`dart_jax.data.contents`); a file of plain text is one document. Text beyond `LONGEST` characters is
cut at line ends into pieces, which are encoded and counted separately, so that memory does not
depend on the corpus (except for single records, which are read whole). Empty documents are skipped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from dart_jax.data.contents import (
    Chat,
    Completion,
    Content,
    NoFormError,
    Text,
    Tokens,
    read_contents,
)
from dart_jax.data.records import (
    PARQUET,
    DamagedError,
    is_text,
    open_text,
    refuse,
)
from dart_jax.errors import UserError

LONGEST = 2**18  # characters; encoding needs about 100 bytes per character

# A chat -> text; raises if the template rejects it.
ChatTemplate = Callable[[Chat], str]


class Document(NamedTuple):
    """One document, or a piece of a long one.

    Attributes:
      text: UTF-8; or token ids, int32.
      chat: whether it is rendered by a chat template, with all special tokens except the end of the
        document.
      first: whether it begins the document.
      last: whether it ends the document.
      tokens: whether `text` holds token ids.
    """

    text: bytes
    chat: bool = False
    first: bool = True
    last: bool = True
    tokens: bool = False


class Unit(NamedTuple):
    """Documents that are counted together.

    Attributes:
      number: from 0, in the corpus's order.
      documents: at least one.
      read: bytes of all files read up to its end.
    """

    number: int
    documents: list[Document]
    read: int

    @property
    def digest(self) -> int:
        """A 64-bit digest of the documents."""
        content = hashlib.blake2b(digest_size=8)
        for text, *kind in self.documents:
            content.update(f"{len(text)} {kind}".encode() + text)
        return int.from_bytes(content.digest(), "big")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Files and how to read them.

    Attributes:
      files: the files, in reading order.
      field: field of the records that holds the text or the chat; None: by their form.
      template: chat template, if there is one.
      vocab_size: one more than the highest token id.
      memory: bytes that reading Parquet may use.
      bad: called with the error of a record that cannot be used, which is then skipped.
    """

    files: tuple[Path, ...]
    field: str | None = None
    template: ChatTemplate | None = None
    vocab_size: int = 2**31
    memory: int = PARQUET
    bad: Callable[[UserError], None] = refuse

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.files)

    def documents(self) -> Iterator[tuple[Document, int]]:
        """Yields every document, and the bytes of all files read up to it.

        Raises:
          UserError: a file cannot be read or a record is invalid; says where.
        """
        before, warned = 0, set()
        for path in self.files:
            for document, read in self._read(path, self._refuse, warned):
                yield document, before + read
            before += path.stat().st_size

    def units(self, size: int, limit: int | None = None) -> Iterator[Unit]:
        """Groups the documents into units of about `size` bytes, without cutting documents.

        Args:
          size: a unit ends with the document that reaches this size.
          limit: maximum number of documents.
        """
        documents: list[Document] = []
        number = held = read = 0
        for document, read in islice(self.documents(), limit):
            documents.append(document)
            held += len(document.text) + 64  # its memory besides the text
            if held >= size:
                yield Unit(number, documents, read)
                documents, held, number = [], 0, number + 1
        if documents:
            yield Unit(number, documents, read)

    def _refuse(self, error: UserError) -> None:
        if isinstance(error, NoFormError):
            error = UserError(f"{error}, or name the field with --field")
        self.bad(error)

    def _read(
        self, path: Path, bad: Callable[[UserError], None], warned: set[str]
    ) -> Iterator[tuple[Document, int]]:
        """Yields documents, each with the number of bytes of the file read so far."""
        if is_text(path):
            try:
                with open_text(path) as (text, raw):
                    for document in _pieces(text):
                        yield document, raw.tell()
            except DamagedError as error:
                bad(error)
            return
        for content, record in read_contents(
            path, field=self.field, memory=self.memory, bad=bad, warned=warned
        ):
            if isinstance(content, Chat) and self.template is None:
                raise UserError(
                    f"{record.where}: messages need a chat template, and the tokenizer has none; "
                    "pass the directory of a tokenizer with one, or --field with a field that "
                    "holds text"
                )
            try:
                for document in self._documents(content):
                    yield document, record.read
            except UserError as error:
                bad(UserError(f"{record.where}: {error}"))

    def _documents(self, content: Content) -> Iterator[Document]:
        match content:
            case Chat():
                yield from _pieces(io.StringIO(self._render(content), newline=""), True)
            case Completion(prompt, completion):
                yield from _pieces(io.StringIO(prompt + completion, newline=""))
            case Text(text):
                yield from _pieces(io.StringIO(text, newline=""))
            case Tokens(tokens):
                if not all(0 <= token < self.vocab_size for token in tokens):
                    raise UserError(
                        f"the record's tokens must be in 0..{self.vocab_size - 1}; use data of "
                        "this tokenizer"
                    )
                if tokens:
                    yield Document(np.array(tokens, np.int32).tobytes(), tokens=True)

    def _render(self, chat: Chat) -> str:
        assert self.template is not None
        try:
            return self.template(chat)
        except Exception as error:  # a template may raise anything
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"the chat template rejects the messages: {reason}") from None


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
    first, previous = True, ""
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
