"""Training examples: chats, prompts with completions, token ids, and texts.

A record is read as the first of these forms that matches its fields:

    {"tokens": [3, 14, ..], "prompt_length": 9}                 what `train.regenerate` writes
    {"messages": [{"role": "user", "content": ".."}, ..]}       UltraChat and most others
    {"conversations": [{"from": "human", "value": ".."}, ..]}   ShareGPT
    {"prompt": "..", "completion": ".."}
    {"instruction": "..", "input": "..", "output": ".."}        Alpaca; input is optional
    {"question": "..", "answer": ".."}                          GSM8K
    {"text": ".."}
    {"data": ["question", "answer", ..]}                        UltraChat as first published
    ".."

A file of plain text is one text. Long texts are cut into pieces (see `documents.cut`).
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

from dart_jax.data.records import is_text, kind, open_text, records, refuse
from dart_jax.errors import UserError
from train.data.documents import cut


class Chat(NamedTuple):
    """Messages for a chat template, each with a `role` and a `content` or tool calls."""

    messages: list[dict[str, Any]]


class Completion(NamedTuple):
    """A prompt and its completion, without a chat template."""

    prompt: str
    completion: str


class Tokens(NamedTuple):
    """Token ids; those after the prompt were written by the target."""

    tokens: list[int]
    prompt_length: int


class Text(NamedTuple):
    """A text without a prompt."""

    text: str


Content = Chat | Completion | Tokens | Text


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


_TURNS = ("messages", "conversations", "conversation")
_PAIRS = (("prompt", "completion"), ("instruction", "output"), ("question", "answer"))
_FIELDS = ("tokens", "prompt_length", *_TURNS, *sum(_PAIRS, ()), "input", "text", "data", "source")
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
}


def read_examples(path: Path, *, bad: Callable[[UserError], None] = refuse) -> Iterator[Example]:
    """Yields a file's examples, in order; skips empty texts.

    Args:
      path: the file.
      bad: called with the error of a record that cannot be used, which is then skipped.

    Raises:
      UserError: the file cannot be read; says where.
    """
    if is_text(path):
        with open_text(path) as (text, raw):
            digest = None
            for piece in cut(text):
                content = Text(_clean(piece))
                digest = digest or digest_of(content)
                yield Example(content, digest, str(path), raw.tell())
        return

    def columns(names: list[str]) -> list[str]:
        return [name for name in names if name in _FIELDS] or names

    for record in records(path, columns=columns, bad=bad):
        try:
            content = parse(record.value)
        except UserError as error:
            bad(UserError(f"{record.where}: {error}"))
            continue
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
        for path in files:
            example = None
            for example in read_examples(path, bad=bad):
                yield example, before + example.read
            if example is None and bad is refuse:
                raise UserError(f"{path} holds no examples; leave it out")
            before += path.stat().st_size

    return islice(everything(), limit)


def parse(value: Any) -> Content:
    """Parses a record.

    Raises:
      UserError: it matches none of the forms, or is malformed.
    """
    if isinstance(value, str):
        return Text(_clean(value))
    if not isinstance(value, dict):
        raise UserError(f"a record must be an object, not {kind(value)}")
    # Parquet fills missing fields with None.
    record = {name: field for name, field in value.items() if field is not None}
    tokens = record.get("tokens")  # in a chat it may be a token count
    if isinstance(tokens, list) or (tokens is not None and not any(f in record for f in _TURNS)):
        return _tokens(record)
    for field in _TURNS:
        if field in record:
            return Chat(_messages(record[field], field))
    for prompt_field, answer_field in _PAIRS:
        if prompt_field in record and answer_field in record:
            prompt, answer = _text(record, prompt_field), _text(record, answer_field)
            if prompt_field == "prompt":
                return Completion(prompt, answer)
            alpaca = prompt_field == "instruction" and "input" in record
            more = _text(record, "input") if alpaca else ""
            return Chat(_alternating([f"{prompt}\n\n{more}" if more.strip() else prompt, answer]))
    if "text" in record:
        return Text(_text(record, "text"))
    if isinstance(record.get("data"), list):
        return Chat(_messages(record["data"], "data"))
    fields = ", ".join(map(str, list(value)[:8])) or "none"
    raise UserError(
        "not a chat, a prompt with completion, or a text of a supported form; it has the fields "
        f"{fields}; use `messages` or `text`"
    )


def digest_of(content: Content) -> int:
    """Returns the digest of a content; see `Example`."""
    text = json.dumps([type(content).__name__, *content], sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _source(value: Any) -> int | None:
    """Returns the digest of the record that this one was generated from, if given."""
    source = value.get("source") if isinstance(value, dict) else None
    if isinstance(source, str) and re.fullmatch("[0-9a-f]{16}", source):
        return int(source, 16)
    return None


def _tokens(record: dict[str, Any]) -> Tokens:
    tokens, length = record["tokens"], record.get("prompt_length", 0)
    # A bool is an int in Python, but not a token id.
    if not isinstance(tokens, list) or not all(
        type(token) is int and abs(token) < 2**31 for token in tokens
    ):
        raise UserError("`tokens` must be an array of ids")
    if type(length) is not int or not 0 <= length <= len(tokens):
        raise UserError(f"`prompt_length` must be in 0..{len(tokens)}, the number of tokens")
    return Tokens(tokens, length)


def _text(record: dict[str, Any], field: str) -> str:
    if not isinstance(record[field], str):
        raise UserError(f"`{field}` must be a string, not {kind(record[field])}")
    return _clean(record[field])


def _messages(turns: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(turns, list) or not turns:
        what = "empty" if turns == [] else kind(turns)
        raise UserError(f"`{field}` must be a list of messages, not {what}")
    if all(isinstance(turn, str) for turn in turns):
        return _alternating([_clean(turn) for turn in turns])
    return [_message(turn, f"`{field}`, message {n}") for n, turn in enumerate(turns, 1)]


def _alternating(turns: list[str]) -> list[dict[str, Any]]:
    """Assigns the turns to user and assistant alternately; the user begins."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]


def _message(turn: Any, name: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise UserError(f"{name} must be an object, not {kind(turn)}")
    turn = {key: value for key, value in turn.items() if value is not None}
    role = turn.pop("role", turn.pop("from", None))
    if not isinstance(role, str) or role not in _ROLES:
        raise UserError(f"{name} has the unknown role {role!r}; the roles are {', '.join(_ROLES)}")
    content = turn.pop("content", turn.pop("value", None))
    if isinstance(content, list):
        content = "".join(_part(part, name) for part in content)
    if content is None and "tool_calls" in turn:
        content = ""
    if not isinstance(content, str):
        raise UserError(f"{name} has no text as its content")
    return {**turn, "role": _ROLES[role], "content": _clean(content)}


def _part(part: Any, name: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        raise UserError(f"{name} holds something other than text")
    return part["text"]


def _clean(text: str) -> str:
    # JSON can hold unpaired surrogates, which tokenizers reject.
    return text.encode(errors="replace").decode()
