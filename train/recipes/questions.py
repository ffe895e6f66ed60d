"""Questions for a target to answer: the user's turns of chats and instructions."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from dart_jax.data.contents import Completion, Content
from dart_jax.data.messages import Chat
from dart_jax.data.records import records, refuse
from dart_jax.errors import UserError
from train.data.examples import read_all

_LEAST, _MOST = 12, 1500  # characters of a turn
_ASCII = 0.98  # of its characters: a small English model answers nothing else well
_TURNS = 3
_BENCHMARK = 500  # first records of a benchmark, which measurements use
_COMPARED = 60  # first characters in which the questions of benchmarks are recognised


def benchmark_questions(files: Iterable[Path]) -> set[str]:
    """Returns what `write_questions` is to leave out: the beginnings of all texts in the first
    500 records of each file."""
    beginnings: set[str] = set()
    for path in files:
        for record in itertools.islice(records(path), _BENCHMARK):
            beginnings.update(map(_beginning, _texts(record.value)))
    return beginnings


def write_questions(
    sources: Sequence[Sequence[Path]],
    out: BinaryIO,
    *,
    left_out: Iterable[str] = (),
    seed: int = 0,
    bad: Callable[[UserError], None] = refuse,
) -> int:
    """Writes chats for `train.regenerate` from the files of each source, one per line, and returns
    their number; their answers are placeholders, since that replaces them. Raises UserError if a
    file cannot be read, or a source has no question.

    Of each chat up to three turns of the user are kept, up to one that is `left_out`
    (`benchmark_questions`), not English, as far as its characters tell, or not of 12 to 1,500
    characters. Sources take turns, and the order within them is random, so that the first lines are
    like all.
    """
    left_out, rng, count = frozenset(left_out), random.Random(seed), 0
    chats: list[list[list[str]]] = []
    for files in sources:
        turns = [_turns(example.content, left_out) for example in read_all(files, None, bad)]
        unique = list({chat[0]: chat for chat in turns if chat}.values())
        if not unique:
            raise UserError(f"no English question in {', '.join(map(str, files))}; leave it out")
        rng.shuffle(unique)
        chats.append(unique)
    for chat in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*chats))):
        messages = [
            {"role": role, "content": content}
            for turn in chat
            for role, content in (("user", turn), ("assistant", "."))
        ]
        out.write(json.dumps({"messages": messages}).encode() + b"\n")
        count += 1
    return count


def _turns(content: Content, left_out: frozenset[str]) -> list[str]:
    """The first turns of the user, up to one that cannot be used."""
    turns: list[Any] = [content.prompt] if isinstance(content, Completion) else []
    if isinstance(content, Chat):
        turns = [message["content"] for message in content.messages if message["role"] == "user"]
    return list(itertools.takewhile(lambda turn: _is_usable(turn, left_out), turns[:_TURNS]))


def _is_usable(turn: Any, left_out: frozenset[str]) -> bool:
    if not isinstance(turn, str) or not _LEAST <= len(turn) <= _MOST:
        return False
    # An instruction may be followed by its input.
    beginnings = {_beginning(turn), _beginning(turn.lstrip().split("\n", 1)[0])}
    ascii_characters = sum(character < "\x80" for character in turn)
    return ascii_characters >= _ASCII * len(turn) and not beginnings & left_out


def _beginning(text: str) -> str:
    return " ".join(text.split())[:_COMPARED].lower()


def _texts(value: Any) -> Iterator[str]:
    """The strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
