"""What the parameters of a function may be, where a call has their values as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dart_jax.grammar.schemas import target

# Types in JSON schemas -> kinds of values; each of the last three is one value.
_KINDS: Mapping[str, frozenset[str]] = {
    **{name: frozenset([name]) for name in ("string", "integer", "array", "object", "null")},
    "number": frozenset(["number", "integer"]),
    "boolean": frozenset(["true", "false"]),
}
EVERY_KIND = frozenset[str]().union(*_KINDS.values())
_OF_CLASSES = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
_OF_VALUES = {None: "null", True: "true", False: "false"}

# How templates write values of a history that are no strings.
_PYTHON = {"None": "null", "True": "true", "False": "false"}

# A schema that refers to others, this often one after the other, may be anything.
_MOST_REFERENCES = 64

# Characters around a value in JSON.
_SPACE = " \t\n\r"


class Parameters:
    """Parameters of a function.

    Attributes:
      schema: of its arguments, an object.
    """

    def __init__(self, schema: Mapping[str, Any] | None):
        """Reads a schema, which may be malformed, or None for no parameters."""
        self._root = {"properties": {}} if schema is None else schema
        self._known: dict[str, frozenset[str]] = {}
        self.schema = self._root
        for _ in range(_MOST_REFERENCES):
            target = self.target(self.schema.get("$ref"))
            if not isinstance(target, Mapping):
                break
            self.schema = target

    @property
    def properties(self) -> Mapping[str, Any]:
        """Schemas of the parameters that have a name."""
        given = self.schema.get("properties")
        return given if isinstance(given, Mapping) else {}

    @property
    def definitions(self) -> dict[str, Any]:
        """Schemas to which all others may refer, by their keyword."""
        return {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}

    @property
    def others(self) -> Any:
        """The schema of all others; False if there are none."""
        return self.schema.get("additionalProperties", "properties" not in self.schema)

    def target(self, reference: Any) -> Any:
        """Returns the schema that a reference means, or None if there is none."""
        return target(self._root, reference)

    def kinds(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """Returns the kinds of values that a schema allows, or more; `depth`: references to it."""
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or depth == _MOST_REFERENCES:
            return EVERY_KIND
        allowed = EVERY_KIND
        if isinstance(names := schema.get("type"), str | list):
            names = [names] if isinstance(names, str) else names
            allowed &= _union(_KINDS.get(str(name), EVERY_KIND) for name in names)
        for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
            if isinstance(values, list):
                allowed &= frozenset(map(_kind, values))
        for key in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(key), list):
                allowed &= _union(self.kinds(part, depth) for part in parts)
        if isinstance(parts := schema.get("allOf"), list):
            allowed = allowed.intersection(*(self.kinds(part, depth) for part in parts))
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in self._known:
                self._known[reference] = EVERY_KIND  # meanwhile
                self._known[reference] = self.kinds(self.target(reference), depth + 1)
            allowed &= self._known[reference]
        return allowed | {"null"} if schema.get("nullable") is True else allowed

    def kinds_of(self, name: str) -> frozenset[str]:
        """Returns the kinds of values that a parameter may have."""
        return self.kinds(self.properties.get(name, self.others or True))


def as_json(text: str, kinds: frozenset[str]) -> str:
    """Returns the value that a text means, as JSON: itself, if it is JSON of one of the kinds but
    not a string; otherwise the text is the value."""
    value = text.strip(_SPACE)
    value = _PYTHON.get(value, value)
    try:
        # Of integers only the class matters, and Python does not read all of them.
        read = json.loads(value, parse_int=lambda digits: 0, parse_constant=_no_json)
    except (RecursionError, ValueError):
        read = text
    return value if _kind(read) in kinds - {"string"} else json.dumps(text, ensure_ascii=False)


def within_string(text: str, kinds: frozenset[str]) -> bool:
    """Returns True if a text is the beginning of JSON of one of the kinds, up to inside of a
    string."""
    if not kinds & {"array", "object"} or text.lstrip(_SPACE)[:1] not in ("[", "{"):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (RecursionError, ValueError):
        pass
    return False


def _no_json(constant: str) -> Any:
    raise ValueError(constant)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _OF_VALUES[value]
    whole = isinstance(value, float) and value.is_integer()
    return "integer" if whole else _OF_CLASSES[type(value)]


def _union(kinds: Any) -> frozenset[str]:
    return frozenset[str]().union(*kinds)
