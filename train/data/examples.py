"""Training examples: the contents of records and of texts, with what identifies them.

`dart_jax.data.contents` lists the forms of records. A file of plain text is one text. Long texts
are cut into pieces (see `documents.cut`).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from dart_jax.data.contents import Chat, Content, Text, read_contents
from dart_jax.data.messages import cleaned
from dart_jax.data.records import DamagedError, is_text, open_text, refuse
from dart_jax.errors import UserError
from train.data.documents import cut


class Example(NamedTuple):
    """One record's content, or a piece of it.

    Attributes:
      content: the content to train on.
      digest: uniform 64-bit hash of the content, independent of its file. The pieces of a text
        share it, and so do a record and the answers that `train.regenerate` generated for it.
      where: file and line, for errors.
      read: bytes of the file read so far.
    """

    content: Content
    digest: int
    where: str
    read: int


def read_examples(
    path: Path,
    *,
    bad: Callable[[UserError], None] = refuse,
    warned: set[str] | None = None,
) -> Iterator[Example]:
    """Yields a file's examples, in order; skips empty texts.

    Args:
      path: the file.
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
                for piece in cut(text):
                    content = Text(cleaned(piece))
                    digest = digest or digest_of(content)
                    yield Example(content, digest, str(path), raw.tell())
        except DamagedError as error:
            bad(error)
        return
    for content, record in read_contents(path, bad=bad, warned=warned):
        digest = _source(record.value) or digest_of(content)
        pieces = [content]
        if isinstance(content, Text):
            pieces = map(Text, cut(io.StringIO(content.text, newline="")))
        for piece in pieces:
            yield Example(piece, digest, record.where, record.read)


def read_all(
    files: Iterable[Path], limit: int | None = None, bad: Callable[[UserError], None] = refuse
) -> Iterator[tuple[Example, int]]:
    """Yields the examples of several files, each with the bytes of all files read so far.

    Args:
      files: the files, in reading order.
      limit: maximum number of examples.
      bad: see `read_examples`; with the default, a file without examples is an error too.

    Raises:
      UserError: a file cannot be read or used; says where.
    """

    def everything() -> Iterator[tuple[Example, int]]:
        before = 0
        warned: set[str] = set()
        for path in files:
            example = None
            for example in read_examples(path, bad=bad, warned=warned):
                yield example, before + example.read
            if example is None and bad is refuse:
                raise UserError(f"{path} holds no examples; leave it out")
            before += path.stat().st_size

    return islice(everything(), limit)


def digest_of(content: Content) -> int:
    """Returns the digest of a content; see `Example`."""
    # Of a chat, only what it has beside the messages: most digests are those of the messages.
    parts = [content[0], *filter(None, content[1:])] if isinstance(content, Chat) else content
    text = json.dumps([type(content).__name__, *parts], sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _source(value: Any) -> int | None:
    """Returns the digest of the record that this one was generated from, if given."""
    source = value.get("source") if isinstance(value, dict) else None
    if isinstance(source, str) and re.fullmatch("[0-9a-f]{16}", source):
        return int(source, 16)
    return None
