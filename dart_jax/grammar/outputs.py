"""The structure that a text must have, as users give it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dart_jax.errors import UserError

# Some models would write spaces for ever; these are enough for an indentation.
_JSON: Any = {"whitespace_pattern": r"[ \n\r\t]{1,40}"}

# Keywords by which an object may need properties that `properties` does not name; those that
# describe it elsewhere; and all that describe one.
_OF_MORE = {"additionalProperties", "patternProperties", "minProperties"}
_ELSEWHERE = {"allOf", "anyOf", "oneOf", "$ref"}
_OF_OBJECTS = {"properties", "required", *_OF_MORE, *_ELSEWHERE}

# Keywords that have schemas: by name; one or a list.
_NAMED_PARTS = {"properties", "patternProperties", "$defs", "definitions"}
_PARTS = {"additionalProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf"}

# Larger integers are rounded by llguidance.
_EXACT = 2**53


@dataclasses.dataclass(frozen=True)
class StructuredOutputs:
    """The structure that a text must have, with vLLM's names; exactly one of these is given.

    Attributes:
      json: a JSON schema, as a mapping or as JSON.
      json_object: any JSON object.
      regex: a regular expression that the whole text matches, in the syntax of Rust's `regex`.
      choice: the text is one of these.
      grammar: a context-free grammar, in llama.cpp's GBNF or llguidance's Lark.

    Raises:
      UserError: none or several are given, or one has the wrong type.
    """

    json: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if self.json is False:
            raise UserError("the JSON schema false allows no text; give another one")
        if len(self._given) != 1:
            has = " and ".join(self._given) or "nothing"
            raise UserError(f"structured outputs need one of {', '.join(_KINDS)}, got {has}")
        [name] = self._given
        value = getattr(self, name)
        if not _KINDS[name](value):
            raise UserError(f"structured outputs have a {name} of the wrong type: {value!r}")

    @classmethod
    def of(cls, value: StructuredOutputs | Mapping[str, Any]) -> StructuredOutputs:
        """Returns `value`, or makes it of the fields by name; raises UserError for unknown ones."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise UserError(f"structured outputs must be a mapping, got {value!r}")
        unknown = [name for name in value if name not in _KINDS]
        if unknown:
            raise UserError(
                f"structured outputs have no {unknown[0]}; they have {', '.join(_KINDS)}"
            )
        return cls(**{name: one for name, one in value.items() if one is not None})

    @property
    def source(self) -> str:
        """The same as a grammar of llguidance.

        Raises:
          UserError: a schema is not JSON, or a grammar cannot be parsed.
        """
        from llguidance import LLMatcher, grammar_from

        try:
            if self.json_object:
                return LLMatcher.grammar_from_json_schema({"type": "object"}, _JSON)
            if self.json is not None:
                return LLMatcher.grammar_from_json_schema(_schema(self.json), _JSON)
            if self.choice is not None:
                return LLMatcher.grammar_from_regex("|".join(map(re.escape, self.choice)))
            if self.regex is not None:
                return LLMatcher.grammar_from_regex(self.regex)
            assert self.grammar is not None
            return grammar_from("grammar", self.grammar)
        except (RecursionError, TypeError, ValueError) as error:
            raise UserError(f"{self.kind} cannot be used: {one_line(error)}") from None

    @property
    def kind(self) -> str:
        """The name of what is given, in words."""
        [name] = self._given
        return "the JSON schema" if name == "json" else f"the {name}"

    @property
    def _given(self) -> list[str]:
        return [name for name in _KINDS if getattr(self, name) not in (None, False)]


def one_line(error: object) -> str:
    """A message in one line, without the state of llguidance."""
    message = str(error).partition("<")[0] if "<state>" in str(error) else str(error)
    message = message.replace("<non-verbose/>", "")
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^|-")]
    return " ".join(lines)[:300]


def json_grammar(schema: Mapping[str, Any] | bool | str) -> str:
    """A JSON schema for `%json` in a grammar in llguidance's Lark.

    Raises:
      UserError: it is not JSON, or is no object.
    """
    try:
        checked = json.loads(_schema(schema))
    except (RecursionError, TypeError, ValueError) as error:
        raise UserError(f"the JSON schema cannot be used: {one_line(error)}") from None
    if not isinstance(checked, dict):
        raise UserError("the JSON schema cannot be used: it must be an object")
    return json.dumps({**checked, "x-guidance": _JSON})


def literal(text: str) -> str:
    """A text that is not empty, in llguidance's Lark."""
    return json.dumps(text, ensure_ascii=False)


def _schema(schema: Mapping[str, Any] | bool | str) -> str:
    """A schema as JSON; raises UserError for integers that llguidance would round."""
    schema = json.loads(schema) if isinstance(schema, str) else schema
    if large := next((x for x in _numbers(schema) if abs(x) > _EXACT), None):
        raise UserError(f"the JSON schema has {large}, a number above 2**53; lower it")
    return json.dumps({} if schema is True else _closed(schema))


def _closed(schema: Any) -> Any:
    """A schema whose objects have no other properties than those named, unless it says more of
    them: few clients mean that they may, but some models would add some for ever. One that
    describes an object in several places stays as it is."""
    schema = json.loads(json.dumps(schema))
    every = list(_schemas(schema))
    for each in every:
        places = len(each.keys() & _OF_OBJECTS) + len(each.get("allOf", ())) - ("allOf" in each)
        if places > 1 and each.keys() & _ELSEWHERE:
            return schema
    for each in every:
        properties = each.get("properties")
        if not isinstance(properties, dict) or each.keys() & _OF_MORE:
            continue
        if properties.keys() >= set(each.get("required", ())):
            each["additionalProperties"] = False
    return schema


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all in it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _schemas(each)
    elif isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            if name in _NAMED_PARTS and isinstance(value, dict):
                yield from _schemas(list(value.values()))
            elif name in _PARTS:
                yield from _schemas(value)


def _numbers(schema: Any) -> Iterator[int]:
    """All integers of a schema that say what its texts may be."""
    if isinstance(schema, Mapping):
        schema = [value for name, value in schema.items() if name not in ("default", "examples")]
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from _numbers(part)
    elif type(schema) is int:
        yield schema


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_choice(value: Any) -> bool:
    texts = isinstance(value, Sequence) and not isinstance(value, str)
    return texts and len(value) > 0 and all(map(_is_text, value))


# The fields, and what they may be.
_KINDS = {
    "json": lambda value: value is True or isinstance(value, Mapping) or _is_text(value),
    "json_object": lambda value: value is True,
    "regex": _is_text,
    "choice": _is_choice,
    "grammar": _is_text,
}
