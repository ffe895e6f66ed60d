"""The visitor's conversation, as the browser keeps it."""

from __future__ import annotations

import dataclasses
from typing import Any

from dart_jax.app.answer import Words

# What a browser keeps and sends at most; older entries go first.
_ENTRIES, _CHARACTERS = 20, 200_000


@dataclasses.dataclass(frozen=True)
class Entry:
    """A prompt and its answer.

    Attributes:
      prompt: what the visitor wrote.
      text: runs of the answer, and whether they were drafted.
      line: what it took.
    """

    prompt: str
    text: tuple[tuple[str, bool], ...] = ()
    line: str = ""

    @property
    def answer(self) -> str:
        """The answer's text."""
        return "".join(run for run, _ in self.text)

    @classmethod
    def of(cls, stored: Any) -> Entry | None:
        """What a browser sent, which may be anything; None if it is no entry."""
        match stored:
            case {"prompt": str(prompt), "text": list(text), "line": str(line)}:
                runs = [(run, bool(drafted)) for run, drafted in filter(_is_run, text)]
                return cls(prompt, tuple(runs), line)
        return None

    @property
    def stored(self) -> dict[str, Any]:
        """For the browser."""
        return {"prompt": self.prompt, "text": list(map(list, self.text)), "line": self.line}


def _is_run(run: Any) -> bool:
    return isinstance(run, list) and len(run) == 2 and isinstance(run[0], str)


def restore(stored: Any) -> list[Entry]:
    """The entries that a browser kept; what is none is left out."""
    if not isinstance(stored, list):
        return []
    return [entry for entry in map(Entry.of, stored[-_ENTRIES:]) if entry is not None]


def store(entries: list[Entry]) -> list[dict[str, Any]]:
    """For the browser: the newest, as many as it should keep."""
    kept, size = [], 0
    for entry in reversed(entries[-_ENTRIES:]):
        size += len(entry.prompt) + len(entry.answer)
        if kept and size > _CHARACTERS:
            break
        kept.append(entry.stored)
    return kept[::-1]


def words(before: list[Entry], prompt: str, chat: bool) -> Words:
    """What the target reads: the whole chat, or the text alone."""
    if not chat:
        return prompt
    messages = []
    for entry in before:
        messages.append({"role": "user", "content": entry.prompt})
        messages.append({"role": "assistant", "content": entry.answer})
    return [*messages, {"role": "user", "content": prompt}]
