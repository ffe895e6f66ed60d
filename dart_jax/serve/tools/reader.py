"""Reads calls of tools out of the text of a model, piece by piece."""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import string
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dart_jax.serve.tools.formats import ToolFormat

# The beginning of a call up to its arguments, as most models write it.
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
# The same where the name precedes the object.
_BARE_HEAD = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_BARE_BEGINNING = re.compile(r"[\w.-]*(?:\[[\w\[\]]*)?\s*")

# Characters around calls.
_BETWEEN = " \r\n\t,;[]"

# Llama's mark of a call; most of its models leave it out.
_PYTHON_TAG = "<|python_tag|>"

# Of ids, which Mistral's templates accept only like this.
_ID_LETTERS, _ID_LENGTH = string.ascii_letters + string.digits, 9


def new_id() -> str:
    """Returns the id of a new call."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))


@dataclasses.dataclass
class CallPiece:
    """A piece of a call.

    Attributes:
      index: which call of the answer, from 0.
      id: of the call, in its first piece.
      name: of the tool, in the first piece.
      arguments: more of the text of the arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


# A piece of an answer: more of its text, or of a call.
Part = str | CallPiece


def divided(parts: Sequence[Part]) -> tuple[str, list[CallPiece]]:
    """Returns more of the text, and one piece of each call."""
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [part for part in parts if isinstance(part, CallPiece)]


class CallReader:
    """Reads one answer: what comes out in pieces is, joined, the same as of the whole text.

    Arguments are passed on while they are written. What looks like a call and is none is text.

    Attributes:
      count: calls so far.
    """

    def __init__(
        self,
        format: ToolFormat,
        names: Collection[str],
        *,
        parallel: bool = True,
        must: bool = False,
    ):
        """Begins an answer.

        Args:
          format: of its calls.
          names: of the tools. Where nothing marks a call, those of other names are none.
          parallel: read all calls; otherwise only the first.
          must: there is nothing but calls, so that text is a part of one that was cut off.
        """
        self.count = 0
        self._format, self._names = format, names
        self._parallel, self._must = parallel, must
        self._rest = ""  # not read yet
        self._final = False  # whether nothing follows
        self._marked = ""  # what marked the calls that are read, in case that they are none
        self._after_call = False  # whether no text has followed the last one
        self._open = False  # whether the last one still goes on
        self._read: Callable[[], bool] = self._text
        self._parts: list[Part] = []

    def push(self, text: str, *, final: bool = False) -> list[Part]:
        """Reads more of the answer; `final`: nothing follows. Returns its parts in their order."""
        self._rest += text
        self._final, self._parts = final, []
        while self._rest and self._read():
            pass
        if final:
            self._add_text(self._marked)  # nothing follows it
            self._marked = ""
        return self._parts

    @property
    def complete(self) -> bool:
        """True if there are calls, and none of them is cut off."""
        return self.count > 0 and not self._open

    # Each of these reads a part of `_rest`; False if it needs more of it.

    def _text(self) -> bool:
        """Reads text up to a mark. Spaces before the mark, or after a call, belong to neither."""
        at, mark = self._next(self._format.begins)
        if mark:
            text = self._rest[:at].rstrip()
            self._add_text(self._take(len(text)))
            self._marked = self._take(at - len(text) + len(mark))
            return self._go_on(self._call)
        if self._final:
            text = self._take(len(self._rest))
            self._add_text(text if text.strip() or not self._after_call else "")
            return True
        self._add_text(self._take(len(self._rest[:at].rstrip())))
        return False

    def _call(self) -> bool:
        """Reads the beginning of a call, or what ends a list of them."""
        format = self._format
        marks = [mark for mark in (format.end, format.begin) if mark]
        rest = self._rest
        while rest[:1] and rest[0] in _BETWEEN and not any(map(rest.startswith, marks)):
            if not self._final and any(mark.startswith(rest) for mark in marks):
                return False
            rest = rest[1:]
        if mark := next(filter(rest.startswith, marks), None):
            if mark == format.end and self._marked:
                return self._no_call(rest)
            read = self._take(len(self._rest) - len(rest) + len(mark))
            if mark == format.end:
                return self._go_on(self._text)
            self._marked += read
            return True
        if not rest or any(mark.startswith(rest) for mark in marks):
            if not self._final:
                return False
            if not self._marked:  # cut off between calls
                return bool(self._take(len(self._rest)))
        skipped = self._rest[: len(self._rest) - len(rest)]
        goes_on = format.listed and "," in skipped and "]" not in skipped
        if format.begin and not format.end and not self._marked and not goes_on:
            return self._no_call(rest)
        return self._head(rest)

    def _head(self, rest: str) -> bool:
        """Reads the beginning of a call, with which `rest` begins, unless it is none."""
        raise NotImplementedError

    def _no_call(self, rest: str) -> bool:
        """Goes on with text; so is what was taken for the mark of a call."""
        if not self._marked:
            self._skip(rest)
        self._add_text(self._marked)
        self._marked = ""
        return self._go_on(self._text)

    def _begin(self, name: str) -> None:
        self.count += 1
        self._after_call = self._open = True
        self._marked = ""
        if self.count == 1 or self._parallel:
            self._parts.append(CallPiece(self.count - 1, new_id(), name))

    def _end(self) -> bool:
        self._open = False
        return self._go_on(self._call)

    def _add_text(self, text: str) -> None:
        if text and not self._must:
            self._after_call = False
            self._parts.append(text)

    def _add(self, arguments: str) -> None:
        if not arguments or (self.count > 1 and not self._parallel):
            return
        parts = self._parts
        if not (parts and isinstance(parts[-1], CallPiece)):
            parts.append(CallPiece(self.count - 1))
        assert isinstance(parts[-1], CallPiece)
        parts[-1].arguments += arguments

    def _next(self, marks: Collection[str], begin: int = 0) -> tuple[int, str]:
        """The place of the first mark from `begin` on, and the mark; if there is none, the place
        where one may begin, and nothing."""
        rest = self._rest
        places = [(rest.find(mark, begin), mark) for mark in marks]
        if found := [(at, mark) for at, mark in places if at >= 0]:
            return min(found)
        held = (n for mark in marks for n in range(len(mark)) if rest.endswith(mark[:n]))
        return max(begin, len(rest) - max(held, default=0)), ""

    def _go_on(self, read: Callable[[], bool]) -> bool:
        self._read = read
        return True

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def _skip(self, rest: str) -> None:
        """Takes what comes before the rest."""
        self._take(len(self._rest) - len(rest))


class ToolCallReader(CallReader):
    """Reads an answer whose calls have their arguments as JSON; see `CallReader`."""

    def __init__(self, format: ToolFormat, names: Collection[str], **options: bool):
        """See `CallReader`."""
        super().__init__(format, names, **options)
        self._nesting = _Nesting()
        self._read = self._text if format.begin else self._start

    def _start(self) -> bool:
        """Decides by the first character whether an answer is a call."""
        begins = self._rest.lstrip()
        if not self._final and _PYTHON_TAG.startswith(begins):
            return False
        marked = begins.startswith(_PYTHON_TAG)
        if not marked and not begins.startswith("{"):
            return self._go_on(self._text)
        self._marked = self._take(len(self._rest) - len(begins) + marked * len(_PYTHON_TAG))
        return self._go_on(self._call)

    def _head(self, rest: str) -> bool:
        format = self._format
        pattern = _HEAD if format.arguments else _BARE_HEAD
        if (head := pattern.match(rest)) and (format.begin or head[1] in self._names):
            self._skip(rest)
            self._take(head.end())
            self._begin(head[1])
            self._nesting = _Nesting()
            return self._go_on(self._arguments)
        if rest.startswith("{"):
            return self._object(rest)
        bare = _BARE_BEGINNING.fullmatch(rest) if not format.arguments else None
        if bare and not self._final:
            return False
        return self._no_call(rest)

    def _object(self, rest: str) -> bool:
        """Reads a call that is written in another order, once it is complete."""
        end = _Nesting().end(rest)
        if end is None:
            return self._no_call(rest) if self._final else False
        name, arguments = _call_of(rest[:end])
        if name is None or not (self._format.begin or name in self._names):
            return self._no_call(rest)
        self._skip(rest)
        self._take(end)
        self._begin(name)
        self._add(arguments)
        return self._end()

    def _arguments(self) -> bool:
        """Reads arguments: an object."""
        end = self._nesting.end(self._rest)
        self._add(self._take(len(self._rest) if end is None else end))
        if end is None:
            return False
        self._nesting = _Nesting(depth=1)
        return self._go_on(self._closing) if self._format.arguments else self._end()

    def _closing(self) -> bool:
        """Skips what follows the arguments in the object of a call."""
        end = self._nesting.end(self._rest)
        self._take(len(self._rest) if end is None else end)
        return end is not None and self._end()


@dataclasses.dataclass
class _Nesting:
    """Place in a JSON object: how many braces are open, and whether it is in a string."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False

    def end(self, text: str) -> int | None:
        """Goes on through a text; returns where the last brace is closed, None if it is not."""
        for place, character in enumerate(text, 1):
            if self.escaped:
                self.escaped = False
            elif self.quoted:
                self.escaped, self.quoted = character == "\\", character != '"'
            elif character == '"':
                self.quoted = True
            elif character in "{}":
                self.depth += 1 if character == "{" else -1
                if not self.depth:
                    return place
        return None


def _call_of(text: str) -> tuple[str | None, str]:
    """The name and the arguments of a call; no name if it is none."""
    try:
        call: Any = json.loads(text, strict=False)
    except (RecursionError, ValueError):
        return None, ""
    function = call.get("function")
    if isinstance(function, dict):
        call = function
    elif isinstance(function, str):
        call = {"name": function, **call}
    arguments = next((call[key] for key in ("arguments", "parameters") if key in call), None)
    if not isinstance(call.get("name"), str) or not isinstance(arguments, dict | str | None):
        return None, ""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return call["name"], arguments
