"""Examples: the contents of records and of texts, with what identifies them.

`dart_jax.data.contents` lists the forms of records. A file of plain text is one text. Texts beyond
`LONGEST` characters are cut at line ends into pieces, which are encoded separately, so that memory
does not depend on the data (except for single records, which are read whole).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from dart_jax.data.contents import Chat, Completion, Content, Text, Tokens, read_contents
from dart_jax.data.messages import cleaned
from dart_jax.data.records import PARQUET, DamagedError, is_text, open_text, refuse
from dart_jax.errors import UserError

LONGEST = 2**18  # characters; encoding needs about 100 bytes per character


class Example(NamedTuple):
    """One record's content, or a piece of it.

    Attributes:
      content: the content to train on.
      digest: uniform 64-bit hash of the content, independent of its file. The pieces of a text
        share it, and so do a record and the answers that `train.regenerate` generated for it.
      where: file and line, for errors.
      read: bytes of the file read so far.
      first: whether it begins the record's content.
      last: whether it ends it.
    """

    content: Content
    digest: int
    where: str
    read: int
    first: bool = True
    last: bool = True

    @property
    def size(self) -> int:
        """The approximate number of characters."""
        match self.content:
            case Text(text):
                return len(text)
            case Completion(prompt, completion):
                return len(prompt) + len(completion)
            case Tokens(tokens):
                return len(tokens)
            case Chat(messages):
                return sum(len(message["content"]) for message in messages)


def read_examples(
    path: Path,
    *,
    field: str | None = None,
    memory: int = PARQUET,
    bad: Callable[[UserError], None] = refuse,
    warned: set[str] | None = None,
) -> Iterator[Example]:
    """Yields a file's examples, in order; skips empty texts.

    Args:
      path: the file.
      field: field of the records that holds the text or the chat; None: by their form.
      memory: bytes that reading Parquet may use.
      bad: called with the error of a record that cannot be used, which is then skipped; of a text
        that is cut off or damaged, it is the rest.
      warned: see `read_contents`.

    Raises:
      UserError: the file cannot be read; says where.
    """
    if is_text(path):
        try:
            with open_text(path) as (text, raw):
                digest = None
                for piece, first, last in _pieces(text):
                    content = Text(cleaned(piece))
                    digest = digest or digest_of(content)
                    yield Example(content, digest, str(path), raw.tell(), first, last)
        except DamagedError as error:
            bad(error)
        return
    records = read_contents(path, field=field, memory=memory, bad=bad, warned=warned)
    for content, record in records:
        digest = _source(record.value) or digest_of(content)
        if not isinstance(content, Text):
            yield Example(content, digest, record.where, record.read)
            continue
        for piece, first, last in _pieces(io.StringIO(content.text, newline="")):
            yield Example(Text(piece), digest, record.where, record.read, first, last)


def read_all(
    files: Iterable[Path],
    limit: int | None = None,
    bad: Callable[[UserError], None] = refuse,
    *,
    field: str | None = None,
    memory: int = PARQUET,
) -> Iterator[tuple[Example, int]]:
    """Yields at most `limit` examples of several files, each with the bytes of all files read so
    far; see `read_examples`. With the default of `bad`, a file without examples is an error too."""

    def everything() -> Iterator[tuple[Example, int]]:
        before = 0
        warned: set[str] = set()
        for path in files:
            example = None
            options = {"field": field, "memory": memory, "warned": warned}
            for example in read_examples(path, bad=bad, **options):
                yield example, before + example.read
            if example is None and bad is refuse:
                raise UserError(f"{path} holds no examples; leave it out")
            before += path.stat().st_size

    return islice(everything(), limit)


def batched(
    examples: Iterable[tuple[Example, int]], size: int
) -> Iterator[tuple[list[Example], int]]:
    """Groups examples of together about `size` characters; each group comes with the bytes read."""
    batch: list[Example] = []
    characters = read = 0
    for example, read in examples:
        batch.append(example)
        characters += example.size + 64  # what it takes besides the text
        if characters >= size:
            yield batch, read
            batch, characters = [], 0
    if batch:
        yield batch, read


def digest_of(content: Content) -> int:
    """Returns the digest of a content; see `Example`."""
    # Of a chat, only what it has beside the messages: most digests are those of the messages.
    parts = [content[0], *filter(None, content[1:])] if isinstance(content, Chat) else content
    text = json.dumps([type(content).__name__, *parts], sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _source(value: Any) -> int | None:
    """Returns the digest of the record that this one was generated from, if it is recorded."""
    source = value.get("source") if isinstance(value, dict) else None
    if isinstance(source, str) and re.fullmatch("[0-9a-f]{16}", source):
        return int(source, 16)
    return None


def _pieces(stream: TextIO) -> Iterator[tuple[str, bool, bool]]:
    """Cuts a text into pieces of at most `LONGEST` characters, after line ends where possible;
    yields each, whether it is the first, and whether it is the last."""
    text, first = stream.read(LONGEST), True
    while text:
        end = len(text)
        if end == LONGEST:
            end = text.rfind("\n") + 1 or LONGEST
        rest = text[end:] + stream.read(end) if len(text) == LONGEST else ""
        yield text[:end], first, not rest
        text, first = rest, False
