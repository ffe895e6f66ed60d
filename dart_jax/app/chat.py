"""The visitor's conversation, which the browser stores."""

from __future__ import annotations

import dataclasses
from typing import Any

from dart_jax.app.answer import Prompt

# Limits of what a browser stores and sends; the oldest entries are dropped first.
_ENTRIES, _CHARACTERS = 20, 200_000


@dataclasses.dataclass(frozen=True)
class Entry:
    """A prompt and its answer.

    Attributes:
      prompt: what the visitor wrote.
      text: runs of the answer's text, and whether each was drafted.
      line: the answer's statistics.
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
        """Parses untrusted data from a browser; None if it is not an entry."""
        match stored:
            case {"prompt": str(prompt), "text": list(text), "line": str(line)}:
                runs = [(run, bool(drafted)) for run, drafted in filter(_is_run, text)]
                return cls(prompt, tuple(runs), line)
        return None

    @property
    def stored(self) -> dict[str, Any]:
        """The form that the browser stores."""
        return {"prompt": self.prompt, "text": list(map(list, self.text)), "line": self.line}


def _is_run(run: Any) -> bool:
    return isinstance(run, list) and len(run) == 2 and isinstance(run[0], str)


def restore(stored: Any) -> list[Entry]:
    """Parses the entries that a browser stored; invalid ones are skipped."""
    if not isinstance(stored, list):
        return []
    return [entry for entry in map(Entry.of, stored[-_ENTRIES:]) if entry is not None]


def store(entries: list[Entry]) -> list[dict[str, Any]]:
    """Returns the newest entries, within the limits, in the form that the browser stores."""
    kept, size = [], 0
    for entry in reversed(entries[-_ENTRIES:]):
        size += len(entry.prompt) + len(entry.answer)
        if kept and size > _CHARACTERS:
            break
        kept.append(entry.stored)
    return kept[::-1]


def full_prompt(before: list[Entry], prompt: str, chat: bool) -> Prompt:
    """Returns the model's input: the whole chat, or only the text."""
    if not chat:
        return prompt
    messages = []
    for entry in before:
        messages.append({"role": "user", "content": entry.prompt})
        messages.append({"role": "assistant", "content": entry.answer})
    return [*messages, {"role": "user", "content": prompt}]
