"""The structure that a text must have, as users give it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dart_jax.errors import UserError
from dart_jax.grammar.gbnf import is_lark, lark_of
from dart_jax.grammar.schemas import prepared

# Between two tokens of JSON: nothing, a blank, or a line break or two and an indentation. Some
# models would write blanks for ever.
_SPACED = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"}
_COMPACT = {"whitespace_flexible": False}


@dataclasses.dataclass(frozen=True)
class StructuredOutputs:
    """The structure that a text must have, with vLLM's names; exactly one kind is given.

    Attributes:
      json: a JSON schema, as a mapping or as JSON.
      json_object: any JSON object.
      regex: a regular expression that the whole text matches, in the syntax of Rust's `regex`.
      choice: the text is one of these.
      grammar: a context-free grammar, in llama.cpp's GBNF or llguidance's Lark.
      disable_any_whitespace: JSON has no blanks and line breaks between its parts.

    Raises:
      UserError: no kind or several are given, or one has the wrong type.
    """

    json: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        if self.json is False:
            raise UserError("the JSON schema false allows no text; give another one")
        if len(self._given) != 1:
            has = " and ".join(self._given) or "nothing"
            raise UserError(f"structured outputs need one of {', '.join(_KINDS)}, got {has}")
        [name] = self._given
        value = getattr(self, name)
        if not _KINDS[name](value):
            raise UserError(f"structured outputs have a {name} of the wrong type: {value!r:.100}")
        if type(self.disable_any_whitespace) is not bool:
            raise UserError("disable_any_whitespace must be true or false")
        if self.disable_any_whitespace and not name.startswith("json"):
            raise UserError(f"disable_any_whitespace is for JSON, not for a {name}; leave it out")

    @classmethod
    def of(cls, value: StructuredOutputs | Mapping[str, Any]) -> StructuredOutputs:
        """Returns `value`, or makes it of the fields by name; raises UserError for unknown ones."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise UserError(f"structured outputs must be a mapping, got {value!r:.100}")
        known = (*_KINDS, "disable_any_whitespace")
        unknown = [name for name in value if name not in known]
        if unknown:
            raise UserError(
                f"structured outputs have no {unknown[0]}; they have {', '.join(known)}"
            )
        return cls(**{name: one for name, one in value.items() if one is not None})

    @property
    def source(self) -> str:
        """The same as a grammar of llguidance.

        Raises:
          UserError: a schema is not JSON, or a grammar cannot be parsed.
        """
        from llguidance import LLMatcher

        try:
            if self.json_object:
                return LLMatcher.grammar_from_json_schema(self._json({"type": "object"}))
            if self.json is not None:
                return LLMatcher.grammar_from_json_schema(self._json(self.json))
            if self.choice is not None:
                return LLMatcher.grammar_from_regex("|".join(map(re.escape, self.choice)))
            if self.regex is not None:
                return LLMatcher.grammar_from_regex(self.regex)
            assert self.grammar is not None
            lark = self.grammar if is_lark(self.grammar) else lark_of(self.grammar)
            return LLMatcher.grammar_from_lark(lark)
        except RecursionError:
            raise UserError(f"{self.kind} is nested too deep; make it flatter") from None
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.kind} cannot be used: {one_line(error)}") from None

    def _json(self, schema: Mapping[str, Any] | bool | str) -> str:
        return json_grammar(schema, compact=self.disable_any_whitespace)

    @property
    def size(self) -> int:
        """The number of bytes of what is given, a schema's as JSON.

        Raises:
          UserError: it is nested too deep to be written.
        """
        given = self.json or self.regex or self.choice or self.grammar or ""
        try:
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        except RecursionError:
            raise UserError(f"{self.kind} is nested too deep; make it flatter") from None
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.kind} cannot be used: {error}") from None
        return len(text.encode(errors="replace"))

    @property
    def kind(self) -> str:
        """The name of what is given, in words."""
        [name] = self._given
        return "the JSON schema" if name == "json" else f"the {name}"

    @property
    def _given(self) -> list[str]:
        return [name for name in _KINDS if getattr(self, name) not in (None, False)]


def one_line(error: object) -> str:
    """A message in one line, without the state of llguidance and options that users do not have."""
    if "coerce_one_of" in str(error):
        return "it has a oneOf whose options may hold at once; use anyOf"
    message = str(error).partition("<")[0] if "<state>" in str(error) else str(error)
    message = message.replace("<non-verbose/>", "")
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^|-")]
    return " ".join(lines)[:300]


def json_grammar(schema: Mapping[str, Any] | bool | str, *, compact: bool = False) -> str:
    """Returns a JSON schema for `%json` in a grammar in llguidance's Lark.

    Args:
      schema: a JSON schema, also as JSON.
      compact: whether there is nothing between the tokens of JSON.

    Raises:
      UserError: it is no schema, allows no text, or has a keyword that is not supported.
    """
    try:
        options = _COMPACT if compact else _SPACED
        source = json.dumps({**prepared(schema), "x-guidance": options}, ensure_ascii=False)
        source.encode()  # half a surrogate pair is no character
        return source
    except RecursionError:
        raise UserError("the JSON schema is nested too deep; make it flatter") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"the JSON schema cannot be used: {one_line(error)}") from None


def literal(text: str) -> str:
    """Returns a text that is not empty, in llguidance's Lark."""
    return json.dumps(text, ensure_ascii=False)


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
