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

from dart_jax.data.contents import Completion, Content, Text, Tokens, parse, unused_fields
from dart_jax.data.messages import Chat, cleaned
from dart_jax.data.records import PARQUET, DamagedError, is_text, open_text, records, refuse
from dart_jax.errors import UserError, warn

LONGEST = 2**18  # characters; encoding needs about 100 bytes per character


class Example(NamedTuple):
    """One record's content, or a piece of it, perhaps the first or the last; from which file and
    line, and the bytes of all files that were read so far.

    The digest is a uniform 64-bit hash of the content, independent of its file. The pieces of a
    text share it, and so do a record and the answers that `train.regenerate` generated for it.
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


def read_all(
    files: Iterable[Path],
    limit: int | None = None,
    bad: Callable[[UserError], None] = refuse,
    *,
    field: str | None = None,
    memory: int = PARQUET,
) -> Iterator[Example]:
    """Yields the examples of several files, in order, at most `limit`; skips empty texts. Warns
    once of each field that is not used, and raises UserError if a file cannot be read.

    Args:
      bad: called with the error of a record that cannot be used, which is then skipped; of a text
        that is cut off or damaged, it is the rest. By default a file without examples is an error
        too.
      field: field of the records that holds the text or the chat; None: by their form.
      memory: bytes that reading Parquet may use.
    """

    def everything() -> Iterator[Example]:
        before, warned = 0, set[str]()
        for path in files:
            example = None
            if is_text(path):
                own = _of_text(path, bad)
            else:
                own = _of_records(path, bad, field, memory, warned)
            for example in own:
                yield example._replace(read=before + example.read)
            if example is None and bad is refuse:
                raise UserError(f"{path} holds no examples; leave it out")
            before += path.stat().st_size

    return islice(everything(), limit)


def _of_text(path: Path, bad: Callable[[UserError], None]) -> Iterator[Example]:
    try:
        with open_text(path) as (text, raw):
            digest = None
            for piece, first, last in _pieces(text):
                content = Text(cleaned(piece))
                digest = digest or digest_of(content)
                yield Example(content, digest, str(path), raw.tell(), first, last)
    except DamagedError as error:
        bad(error)


def _of_records(
    path: Path,
    bad: Callable[[UserError], None],
    field: str | None,
    memory: int,
    warned: set[str],
) -> Iterator[Example]:
    for where, value, read in records(path, memory=memory, bad=bad):
        try:
            content = parse(value, field)
        except RecursionError:
            bad(UserError(f"{where}: it is nested too deeply"))
            continue
        except UserError as error:
            bad(type(error)(f"{where}: {error}"))
            continue
        unused = [] if field else [name for name in unused_fields(value) if name not in warned]
        if unused:
            warned.update(unused)
            warn(f"{where}: not used: {', '.join(unused)}")
        digest = _source(value) or digest_of(content)
        if not isinstance(content, Text):
            yield Example(content, digest, where, read)
            continue
        for piece, first, last in _pieces(io.StringIO(content.text, newline="")):
            yield Example(Text(piece), digest, where, read, first, last)


def batched(examples: Iterable[Example], size: int) -> Iterator[list[Example]]:
    """Groups examples of together about `size` characters."""
    batch: list[Example] = []
    characters = 0
    for example in examples:
        batch.append(example)
        characters += example.size + 64  # what it takes besides the text
        if characters >= size:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


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
