"""Reads calls of tools whose arguments stand between marks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from dart_jax.serve.tools.formats import XmlFormat
from dart_jax.serve.tools.parameters import Parameters, as_json, within_string
from dart_jax.serve.tools.reader import CallReader

_NAME = re.compile(r"\s*([\w.-]*)\s*")


class XmlCallReader(CallReader):
    """Reads an answer whose calls are XML, and passes their arguments on as JSON; see `CallReader`.

    Texts are passed on while they are written, other values when they are complete.
    """

    _format: XmlFormat

    def __init__(self, format: XmlFormat, tools: Mapping[str, Parameters], **options: bool):
        """See `CallReader`; `tools`: names of the tools -> their parameters."""
        super().__init__(format, tools, **options)
        self._tools, self._parameters = tools, Parameters({})
        self._keys: list[str] = []  # of the call that is open
        self._kinds = frozenset[str]()  # of the value that is read
        self._known = 0  # up to where no mark ends it

    @property
    def _stops(self) -> tuple[str, ...]:
        """Marks that end a parameter, or the call."""
        return (*self._format.ends, *self._format.begins)

    def _head(self, rest: str) -> bool:
        format = self._format
        before = "" if self._marked.endswith(format.name_begin) else format.name_begin
        if not rest.startswith(before):
            wait = before.startswith(rest) and not self._final
            return False if wait else self._no_call(rest)
        name = _NAME.match(rest, len(before))
        assert name is not None  # since it may be empty
        ends = [format.name_end] if format.name_end else [format.key_begin, format.end]
        after = rest[name.end() :]
        if not any(map(after.startswith, ends)):
            wait = any(end.startswith(after) for end in ends) and not self._final
            return False if wait else self._no_call(rest)
        if not name[1] or not (format.begin in self._marked or name[1] in self._names):
            return self._no_call(rest)
        self._skip(after)
        self._take(len(format.name_end))
        self._begin(name[1])
        self._add("{")
        self._parameters, self._keys = self._tools.get(name[1], Parameters({})), []
        return self._go_on(self._arguments)

    def _arguments(self) -> bool:
        """Reads up to the next parameter or the end of the call; what is neither is left out."""
        at, mark = self._next(self._stops)
        self._take(at)
        if not mark:
            return False
        if mark == self._format.key_begin:
            self._take(len(mark))
            return self._go_on(self._key)
        if mark == self._format.value_end:
            return bool(self._take(len(mark)))
        if mark == self._format.close:
            self._take(len(mark))
        self._add("}")
        return self._end()

    def _key(self) -> bool:
        """Reads the name of a parameter."""
        format = self._format
        at, mark = self._next((format.key_end, *self._stops))
        if not mark:
            return False
        key = self._take(at).strip()
        if mark != format.key_end:
            return self._go_on(self._arguments)
        self._take(len(mark))
        self._keys.append(key)
        return self._go_on(self._opening)

    def _opening(self) -> bool:
        """Reads what comes before a value."""
        format = self._format
        if format.value_begin:
            at, mark = self._next((format.value_begin, *self._stops))
            self._take(at)
            if mark != format.value_begin:
                if mark:
                    self._keys.pop()
                    self._go_on(self._arguments)
                return bool(mark)
            self._take(len(mark))
        elif self._rest.startswith(format.value_space):
            self._take(len(format.value_space))
        self._kinds, self._known = self._parameters.kinds_of(self._keys[-1]), 0
        if self._is_text:
            self._add_value('"')
        return self._go_on(self._value)

    def _value(self) -> bool:
        """Reads a value up to the mark that ends it, which JSON may have in its strings."""
        format = self._format
        at, mark = self._next(format.ends, self._known)
        while mark and within_string(self._rest[:at], self._kinds):
            self._known = at + len(mark)
            at, mark = self._next(format.ends, self._known)
        if not mark and self._final and self._known:
            at, mark = self._next(format.ends)  # it was no JSON
        text = self._rest[:at]
        if format.value_space and text.endswith(format.value_space):
            text = text[: -len(format.value_space)]
        if self._is_text:
            self._add_value(json.dumps(text, ensure_ascii=False)[1:-1], begin=False)
            self._take(at if mark else len(text))
        if not mark:
            return False
        if self._is_text:
            self._add_value('"', begin=False)
        else:
            self._add_value(as_json(text, self._kinds))
            self._take(at)
        return self._go_on(self._arguments)

    @property
    def _is_text(self) -> bool:
        return self._kinds == {"string"}

    def _add_value(self, text: str, begin: bool = True) -> None:
        """Adds to the arguments a part of a value, of which `begin` is the first. Of several values
        of a parameter only the first counts."""
        *others, key = self._keys
        if key not in others:
            head = f"{', ' if others else ''}{json.dumps(key, ensure_ascii=False)}: "
            self._add(head + text if begin else text)
