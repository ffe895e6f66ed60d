"""Reads calls of tools out of the text of a model, piece by piece."""

from __future__ import annotations

import dataclasses
import functools
import json
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import regex

from dart_jax.serve.tools.formats import ToolFormat
from dart_jax.serve.tools.parameters import Parameters, as_json, within_string

# The beginning of a call up to its arguments, as most models write it.
_HEAD = r'\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
# The same where the name precedes the object.
_BARE_HEAD = r"(?P<name>[\w.-]++)(?:\[CALL_ID\]\w++)?(?:\[ARGS\])?\s*(?=\{)"

# Llama's mark of a call; most of its models leave it out.
_PYTHON_TAG = r"(?:<\|python_tag\|>)?"

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


class _Patterns(NamedTuple):
    """What a format's calls look like.

    Attributes:
      mark: with which a call may begin, after any space.
      call: its beginning up to the arguments, from the mark on.
      other: the beginning of one whose parts are in another order.
      further: the beginning of one that follows another without a mark.
      further_other: the same where its parts are in another order.
      end: what ends calls.
      item: in XML, the beginning of an argument up to its value, or the end of all.
      value_end: in XML, the end of a value.
    """

    mark: regex.Pattern[str]
    call: regex.Pattern[str]
    other: regex.Pattern[str]
    further: regex.Pattern[str]
    further_other: regex.Pattern[str]
    end: regex.Pattern[str]
    item: regex.Pattern[str]
    value_end: regex.Pattern[str]


@functools.cache
def _patterns(format: ToolFormat) -> _Patterns:
    def any_of(*texts: str) -> str:
        return "|".join(regex.escape(text) for text in texts if text) or "(?!)"

    begin, end = any_of(format.begin), any_of(format.end)
    name_begin, name_end = map(regex.escape, (format.name_begin, format.name_end))
    if format.is_xml:
        name = name_begin + r"\s*(?P<name>[\w.-]+)\s*"
        name += name_end or f"(?={any_of(format.key_begin, format.end)})"
        mark = rf"(?<!\s)\s*+(?:{any_of(*format.begins)})"
        optional = "?" if name_begin else ""
        call = rf"\s*+(?:(?P<mark>{begin})\s*){optional}{name}"
        other = further = further_other = "(?!)"
    else:
        mark = rf"(?<!\s)\s*+(?P<mark>{begin})" if format.begin else rf"\A\s*+{_PYTHON_TAG}(?=\{{)"
        call = rf"{mark}[\s\[]*+{_HEAD if format.arguments else _BARE_HEAD}"
        other = rf"{mark}[\s\[]*+(?=\{{)"
        further_other = r"\s*+[,;]?\s*+(?=\{)" if format.arguments else "(?!)"
        further = further_other + _HEAD
    value_begin = rf"\s*{regex.escape(format.value_begin)}" if format.value_begin else ""
    space = regex.escape(format.value_space)
    item = (
        rf"{any_of(format.key_begin)}(?P<key>[^<>]*+){any_of(format.key_end)}{value_begin}"
        + (rf"(?:{space}|(?!{space})(?=.))" if space else "")
        + f"|(?P<close>{any_of(format.close)})|{any_of(*format.begins, format.end)}"
    )
    value_end = f"(?:{space})?(?:{any_of(*format.ends)})"
    after = rf"[\s\]]*(?:{end})" if format.end else r"\s*\]"
    texts = (mark, call, other, further, further_other, after, item, value_end)
    return _Patterns(*(regex.compile(text, regex.DOTALL) for text in texts))


class CallReader:
    """Reads one answer: what comes out in pieces is, joined, the same as of the whole text.

    Arguments are passed on while they are written, in XML if they are texts, otherwise when they
    are complete. What looks like a call and is none is text.

    Attributes:
      count: calls so far.
    """

    def __init__(
        self,
        format: ToolFormat,
        tools: Mapping[str, Parameters],
        *,
        parallel: bool = True,
        must: bool = False,
    ):
        """Begins an answer.

        Args:
          format: of its calls.
          tools: names of the tools -> their parameters. Where nothing marks a call, other names are
            not calls.
          parallel: read all calls; otherwise only the first.
          must: there is nothing but calls, so that text is a part of one that was cut off.
        """
        self.count = 0
        self._format, self._tools, self._patterns = format, tools, _patterns(format)
        self._parallel, self._must = parallel, must
        self._rest = ""  # not read yet
        self._final = False  # whether nothing follows
        self._silent = True  # whether no text has come since the beginning, or the last call
        self._open = False  # whether the last call still goes on
        self._read: Callable[[], bool] = self._text
        self._parts: list[Part] = []
        self._nesting = _Nesting()
        self._parameters = Parameters({})  # of the call that is open
        self._keys: list[str] = []  # of its arguments
        self._kinds = frozenset[str]()  # of the value that is read
        self._known = 0  # up to where no mark ends it

    def push(self, text: str, *, final: bool = False) -> list[Part]:
        """Reads more of the answer; `final`: nothing follows. Returns its parts in their order."""
        self._rest += text
        self._final, self._parts = final, []
        if self._rest.isspace() and not final:  # what follows tells to what it belongs
            return []
        while self._read():
            pass
        return self._parts

    @property
    def complete(self) -> bool:
        """True if there are calls, and none of them is cut off."""
        return self.count > 0 and not self._open

    # Each of these reads a part of `_rest`; False if it needs more of it.

    def _text(self) -> bool:
        """Reads text up to a call. Spaces before it belong to neither."""
        place, wait = 0, not self._final
        while mark := self._patterns.mark.search(self._rest, place, partial=wait):
            if not self._format.begin and not self._silent:
                break
            call = self._patterns.call.match(self._rest, mark.start(), partial=wait)
            if call and call.partial:
                self._add_text(self._take(mark.start()))
                return False
            if call and self._is_call(call["name"], call.groupdict().get("mark")):
                self._add_text(self._take(mark.start()))
                return self._begin(len(call[0]), call["name"])
            if call is None and (other := self._patterns.other.match(self._rest, mark.start())):
                self._add_text(self._take(mark.start()))
                return self._read_object(len(other[0]), len(mark[0]) or 1)
            place = mark.end()
            if mark.partial or not self._format.begin:
                break
        text = self._take(len(self._rest))
        self._add_text(text if text.strip() or not (self.count and self._silent) else "")
        return False

    def _read_object(self, begin: int, mark: int) -> bool:
        """Begins a call whose parts are in another order, at a brace. If it is none, so many
        characters are text."""
        self._nesting, self._known = _Nesting(), begin
        return self._go_on(functools.partial(self._object, begin, mark))

    def _object(self, begin: int, mark: int) -> bool:
        """Reads such a call, once it is complete."""
        end = self._nesting.end(self._rest[self._known :])
        if end is None and not self._final:
            self._known = len(self._rest)
            return False
        if end is not None:
            name, arguments = _call_in(self._rest[begin : self._known + end])
            if name and self._is_call(name, self._format.begin):
                return self._begin(self._known + end, name, arguments)
        self._add_text(self._take(mark))
        return self._go_on(self._text)

    def _after(self) -> bool:
        """Reads what follows a call: another one, the end of all, or text."""
        patterns, wait = self._patterns, not self._final
        further, other, end = found = [
            each.match(self._rest, partial=wait)
            for each in (patterns.further, patterns.further_other, patterns.end)
        ]
        if further and not further.partial and self._is_call(further["name"], self._format.begin):
            return self._begin(len(further[0]), further["name"])
        if any(each is not None and each.partial for each in found):
            return False
        if other:
            return self._read_object(len(other[0]), 0)
        self._take(0 if end is None else len(end[0]))
        return self._go_on(self._text)

    def _is_call(self, name: str, mark: str | None) -> bool:
        return bool(mark) or name in self._tools

    def _begin(self, length: int, name: str, arguments: str | None = None) -> bool:
        """Begins a call whose beginning is so long."""
        self._take(length)
        self.count += 1
        self._silent = self._open = True
        if self.count == 1 or self._parallel:
            self._parts.append(CallPiece(self.count - 1, new_id(), name))
        if arguments is not None:
            self._add(arguments)
            return self._end()
        if self._format.is_xml:
            self._add("{")
            self._parameters, self._keys = self._tools.get(name, Parameters({})), []
            return self._go_on(self._items)
        self._nesting = _Nesting()
        return self._go_on(self._arguments)

    def _end(self) -> bool:
        self._open = False
        return self._go_on(self._after)

    def _arguments(self) -> bool:
        """Reads arguments in JSON: an object."""
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

    def _items(self) -> bool:
        """Reads up to the next value in XML, or the end of the call; what is neither is left
        out."""
        item = self._patterns.item.search(self._rest, partial=not self._final)
        self._take(len(self._rest) if item is None else item.start())
        if item is None or item.partial:
            return False
        if item["key"] is None:
            self._take(len(item["close"] or ""))
            self._add("}")
            return self._end()
        self._take(len(item[0]))
        self._keys.append(item["key"].strip())
        self._kinds, self._known = self._parameters.kinds_of(self._keys[-1]), 0
        if self._is_text:
            self._add_value('"')
        return self._go_on(self._value)

    def _value(self) -> bool:
        """Reads a value up to the mark that ends it, which JSON may have in its strings."""
        search = functools.partial(self._patterns.value_end.search, self._rest, partial=True)
        found = search(pos=self._known)
        while found and not found.partial and self._in_string(found.start()):
            self._known = found.end()
            found = search(pos=self._known)
        if self._final and (found is None or found.partial):  # it was no JSON
            found = search()
        text = self._rest[: len(self._rest) if found is None else found.start()]
        if self._is_text:
            self._add_value(json.dumps(text, ensure_ascii=False)[1:-1], begin=False)
            self._take(len(text))
        if found is None or found.partial:
            self._known = 0 if self._is_text else len(text)
            return False
        if self._is_text:
            self._add_value('"', begin=False)
        else:
            self._add_value(as_json(text, self._kinds))
            self._take(len(text))
        own = self._format.value_space + self._format.value_end
        self._rest = self._rest.removeprefix(own).removeprefix(self._format.value_end)
        return self._go_on(self._items)

    @property
    def _is_text(self) -> bool:
        return self._kinds == {"string"}

    def _in_string(self, place: int) -> bool:
        return within_string(self._rest[:place], self._kinds)

    def _add_value(self, text: str, begin: bool = True) -> None:
        """Adds to the arguments a part of a value, of which `begin` is the first. Of several values
        of a parameter only the first counts."""
        *others, key = self._keys
        if key not in others:
            head = f"{', ' if others else ''}{json.dumps(key, ensure_ascii=False)}: "
            self._add(head + text if begin else text)

    def _add_text(self, text: str) -> None:
        self._silent = self._silent and not text
        if text and not self._must:
            self._parts.append(text)

    def _add(self, arguments: str) -> None:
        if not arguments or (self.count > 1 and not self._parallel):
            return
        if not (self._parts and isinstance(self._parts[-1], CallPiece)):
            self._parts.append(CallPiece(self.count - 1))
        assert isinstance(self._parts[-1], CallPiece)
        self._parts[-1].arguments += arguments

    def _go_on(self, read: Callable[[], bool]) -> bool:
        self._read = read
        return True

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


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


def _call_in(text: str) -> tuple[str | None, str]:
    """Returns the name and the arguments of a call; no name if it is none."""
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
