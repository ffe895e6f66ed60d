"""Thoughts: what some models write before their answer, between marks."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from dart_jax.text.chat_template import END_OF_THINK, THINK
from dart_jax.text.tokenizer import Tokenizer

# The last tokens of a prompt, among which a mark of the template's is found.
_TAIL = 8


class ThoughtMarks(NamedTuple):
    """Tokens around the thoughts of a text.

    Attributes:
      begin: the first token of a text that thinks, or None if the prompt has it.
      end: the token after them.
    """

    begin: int | None
    end: int


@dataclasses.dataclass(frozen=True)
class Thinking:
    """How the answers to a prompt think.

    Attributes:
      opened: whether the prompt has begun the thoughts.
      closed: whether it has ended them, too.
      begin: the id of the mark before thoughts, or None if it takes several tokens.
      end: likewise after them.
    """

    opened: bool
    closed: bool
    begin: int | None
    end: int | None

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, template: str, prompt: np.ndarray, continued: str | None = None
    ) -> Thinking | None:
        """Returns how answers to a prompt think, or None if its template knows no thoughts.

        Args:
          tokenizer: the target's.
          template: the source of its chat template.
          prompt: int32 [n], what that made of a chat.
          continued: the beginning of the answer, if the chat has it.
        """
        if THINK not in template and END_OF_THINK not in template:
            return None
        if continued is None:
            end = tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
            opened, closed = end.endswith(THINK), end.endswith(END_OF_THINK)
        else:
            opened = continued.rfind(THINK) > continued.rfind(END_OF_THINK)
            closed = not opened
        ids = (tokenizer.backend.token_to_id(mark) for mark in (THINK, END_OF_THINK))
        return cls(opened, closed, *ids)

    @property
    def marks(self) -> ThoughtMarks | None:
        """The marks for a grammar, which the answer follows after its thoughts. None where it has
        none, or they are not single tokens."""
        if self.closed or self.end is None or (self.begin is None and not self.opened):
            return None
        return ThoughtMarks(None if self.opened else self.begin, self.end)

    def reader(self, *, exact: bool, raw: bool) -> ThoughtReader:
        """Returns a reader of an answer; see `ThoughtReader`."""
        return ThoughtReader(self.opened, exact=exact, raw=raw)

    def count(self, tokens: list[int]) -> int:
        """Counts the thoughts among the tokens of an answer, with their marks."""
        begins = self.opened or (self.begin is not None and self.begin in tokens[:2])
        if not begins or self.end is None:
            return 0
        return tokens.index(self.end) + 1 if self.end in tokens else len(tokens)


class ThoughtReader:
    """Parts the text of one answer: what comes out in pieces is, joined, the same as of the whole
    text. Spaces around the thoughts, and the marks, belong to nothing."""

    def __init__(self, opened: bool, *, exact: bool = False, raw: bool = False):
        """Begins an answer.

        Args:
          opened: whether the prompt has begun the thoughts.
          exact: the spaces of what follows the thoughts belong to it.
          raw: marks and spaces belong to the thoughts, so that nothing is left out.
        """
        self._opened, self._exact, self._raw = opened, exact or raw, raw
        self._begun = self._thinking = False
        self._held = ""  # may be a part of a mark, or the last spaces
        self._stripped = True  # whether spaces are left out until something else comes

    def push(self, text: str, *, final: bool = False) -> tuple[str, str]:
        """Reads more of the answer; `final`: nothing follows. Returns more of the thoughts, and
        more of the answer that follows them."""
        text, self._held = self._held + text, ""
        if not self._begun:
            begins = text.lstrip()
            if THINK.startswith(begins) and begins != THINK and not final:
                self._held = text
                return "", ""
            self._begun = True
            # Some models open what the prompt has opened.
            self._thinking = self._opened or begins.startswith(THINK)
            self._stripped = self._thinking and not self._raw
            text = begins.removeprefix(THINK) if self._stripped else text
        if not self._thinking:
            return "", self._strip(text)
        thoughts, found, rest = text.partition(END_OF_THINK)
        if self._raw and (found or final):
            self._thinking = not found
            return thoughts + found, rest
        if found:
            thoughts = self._strip(thoughts).rstrip()
            self._thinking, self._stripped = False, not self._exact
            return thoughts, self._strip(rest)
        if final:
            return self._strip(thoughts).rstrip(), ""
        places = range(len(END_OF_THINK) - 1, 0, -1)
        part = next((n for n in places if thoughts.endswith(END_OF_THINK[:n])), 0)
        sure = thoughts[: len(thoughts) - part]
        sure = sure if self._raw else sure.rstrip()
        self._held = thoughts[len(sure) :]
        return self._strip(sure), ""

    def _strip(self, text: str) -> str:
        """Leaves out the first spaces."""
        if self._stripped:
            text = text.lstrip()
            self._stripped = not text
        return text
