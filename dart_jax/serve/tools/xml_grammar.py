"""The grammar of arguments that stand between marks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import json_grammar, literal
from dart_jax.grammar.schemas import FORMATS
from dart_jax.serve.tools.formats import ToolFormat
from dart_jax.serve.tools.parameters import Parameters

_ANY, _NOTHING = "/(?s:.*)/", "(/a/ & /b/)"

# What is written of kinds of values besides texts, where that is known without their schema, and
# with what the others begin.
_WRITTEN = {
    "null": "null",
    "true": "true",
    "false": "false",
    "integer": "-?(0|[1-9][0-9]{0,14})",
    "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?",
}
_BEGINNINGS = {"integer": "-0-9", "number": "-0-9", "array": r"\[", "object": r"\{"}
_LIMITS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum",
    "$ref",
)  # fmt: skip

# Keywords to which all arguments together cannot be held.
_NOT_OF_ARGUMENTS = (
    "allOf", "anyOf", "const", "enum", "maxProperties", "minProperties", "oneOf",
    "patternProperties",
)  # fmt: skip

# At most: references to each other; characters of the values of a function, of which each may have
# the definitions of all.
_DEEPEST, _LONGEST = 64, 1_000_000

_TERM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_REFERENCE = re.compile(r'"\$ref": ("(?:[^"\\]|\\.)*")')


def in_lark(text: str, marks: Mapping[str, int]) -> str:
    """Writes a text in llguidance's Lark; `marks`: those that are tokens -> their ids."""
    for mark, id in marks.items():
        before, found, after = text.partition(mark)
        if found:
            return f"{in_lark(before, marks)} <[{id}]> {in_lark(after, marks)}"
    return literal(text) if text else ""


def without(texts: tuple[str, ...]) -> str:
    """Writes any text that has none of these in it, for a terminal."""
    return f"{_ANY} & ~/(?s:.*)({_slashed('|'.join(map(re.escape, texts)))})(?s:.*)/"


class XmlArguments:
    """Writes the arguments of a function's calls in llguidance's Lark, in the order of the schema.

    Attributes:
      body: what stands between the head and the tail of a call.
      rules: those that it refers to.
    """

    def __init__(
        self, format: ToolFormat, marks: Mapping[str, int], number: int, schema: Mapping[str, Any]
    ):
        """Writes them.

        Args:
          format: of calls.
          marks: the format's marks that are tokens -> their ids.
          number: of the function; its rules have it in their names.
          schema: of the arguments.

        Raises:
          UserError: the schema asks for what calls in this format cannot be held to.
        """
        self._format, self._marks, self._number = format, marks, number
        self._parameters = Parameters(_prepared(schema))
        self._terminals: dict[str, str] = {}  # references -> what they allow of texts
        self._free, self._length = f"FREE_{number}", 0
        self.rules = [f"{self._free}: {without(format.ends)}"]
        schema = self._parameters.schema
        for keyword in _NOT_OF_ARGUMENTS:
            if keyword in schema:
                raise _cannot(f"{keyword} of all parameters; leave it out")
        others = self._parameters.others
        required = schema.get("required")
        required = [*filter(_is_text, required)] if isinstance(required, list) else []
        self._named = {**self._parameters.properties}
        # What must be there may be, although it is not described.
        unnamed = schema.get("additionalProperties", True)
        self._named |= {name: unnamed for name in required if name not in self._named}
        body = []
        for place, (name, value) in enumerate(self._named.items()):
            if self._parameters.kinds(value):
                rule = self._parameter(f"{number}_{place}", name, value)
                body.append(rule if name in required else f"{rule}?")
            elif name in required:
                raise _cannot(f"the parameter {name!r:.50}, which can have no value; leave it out")
        if others is not False:
            rule = self._parameter(f"{number}_{len(self._named)}", None, others)
            body.append(f"{rule}*")
        self.body = " ".join(body)

    def _parameter(self, rule: str, name: str | None, schema: Any) -> str:
        """Adds the rules of a parameter, or of all that have no name here; returns their name."""
        format = self._format
        opening, line = format.opening.removeprefix(format.key_end), self._lark(format.line)
        if name is None:
            names = r"/[^<>\s]([^<>\n]{0,62}[^<>\s])?/"
            names += "".join(f" & ~{literal(each)}" for each in self._named)
            key = self._terminal(f"n_{rule}", names, format.key_begin, after=format.key_end)
        else:
            marks = (format.key_begin, format.key_end, *format.ends)
            if not name or name.strip() != name or any(map(name.__contains__, (*marks, "\n"))):
                raise _cannot(f"a parameter with the name {name!r:.50}; give it another one")
            key = self._lark(format.key_begin + name + format.key_end)
        values = " | ".join(self._values(rule, schema))
        self.rules.append(f"p_{rule}: {key} {self._lark(opening)} ({values}) {line}")
        self._length += len(values)
        if self._length > _LONGEST:
            raise _cannot("definitions this large for this many parameters; leave some out")
        return f"p_{rule}"

    def _values(self, rule: str, schema: Any) -> Iterator[str]:
        """Adds rules of a value and the mark that ends it; returns what refers to them.

        A lexeme is as long as it can be. So texts have a terminal together with what ends them, and
        JSON is an alternative only if its first character tells it from all texts there.
        """
        format, kinds = self._format, self._parameters.kinds(schema)
        apart = kinds
        if "string" in kinds:
            limited = any(f'"{keyword}"' in json.dumps(schema) for keyword in _LIMITS)
            apart = kinds & ({*_BEGINNINGS} if limited else {"array", "object"})
            texts = [f"{self._texts(schema)} & {self._free}"]
            if begins := "".join(sorted({_BEGINNINGS[kind] for kind in apart})):
                texts[0] += rf" & ~/[ \t\n\r]*[{begins}](?s:.*)/"
            texts += [f"/{_WRITTEN[kind]}/" for kind in sorted(kinds - apart - {"string"})]
            terminal = " | ".join(texts)
            yield self._terminal(f"v_{rule}", terminal, "", format.value_space, format.value_end)
            schema = {**schema} if isinstance(schema, Mapping) else {}
            schema["type"] = sorted(apart)
        if apart:
            after = self._lark(format.value_space + format.value_end)
            yield f"%json {json_grammar(self._alone(schema))} {after}"

    def _texts(self, schema: Any, depth: int = 0) -> str:
        """Returns the texts that a schema allows, for a terminal; `depth`: references to it."""
        if depth > _DEEPEST:
            raise _cannot("definitions that refer to each other so often; make them flatter")
        if not isinstance(schema, Mapping):
            return _ANY
        parts = []
        for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
            if isinstance(values, list):
                parts.append(_any_of([literal(each) for each in filter(_is_text, values)]))
        if isinstance(pattern := schema.get("pattern"), str):
            parts.append(_search(pattern))
        if schema.get("format") in FORMATS:
            parts.append(f"/{_slashed(FORMATS[schema['format']])}/")
        if limits := {"minLength", "maxLength"} & schema.keys():
            if any(type(schema[keyword]) is not int for keyword in limits):
                raise _cannot("a length that is no integer; give one")
            least, most = schema.get("minLength", 0), schema.get("maxLength", "")
            parts.append(f"/(?s:.){{{least},{most}}}/")
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(schemas := schema.get(keyword), list):
                allowed = [
                    self._texts(each, depth)
                    for each in schemas
                    if "string" in self._parameters.kinds(each)
                ]
                if keyword == "allOf":
                    parts += allowed
                elif keyword == "oneOf" and len(allowed) > 1 and not all(map(_is_finite, schemas)):
                    raise _cannot("a oneOf whose texts may be the same; use anyOf")
                else:
                    parts.append(_any_of(allowed))
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in self._terminals:
                if (target := self._parameters.target(reference)) is None:
                    raise _cannot(f"the reference {reference!r:.50}; use one to $defs")
                texts = self._texts(target, depth + 1)
                name = self._terminals[reference] = f"T_{self._number}_{len(self.rules)}"
                self.rules.append(f"{name}: {texts}")
            parts.append(self._terminals[reference])
        return f"({' & '.join(parts)})" if parts else _ANY

    def _terminal(
        self, name: str, expression: str, before: str = "", space: str = "", after: str = ""
    ) -> str:
        """Adds a lexeme with marks around it, unless they are tokens; returns what refers to it and
        them."""
        begin, end = ("" if mark in self._marks else mark for mark in (before, after))
        around = [literal(text) if text else "" for text in (begin, space + end)]
        # Lazy, llguidance sees that it ends with its mark; otherwise it may fail at a token there.
        head = f"{name}[lazy]" if end else (name := name.upper())
        self.rules.append(f"{head}: {around[0]} ({expression}) {around[1]}")
        first, last = (self._lark(mark) if mark in self._marks else "" for mark in (before, after))
        return f"{first} {name} {last}"

    def _alone(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a schema with the definitions that it may use."""
        definitions = self._parameters.definitions
        for found in _REFERENCE.findall(json.dumps([schema, definitions])):
            reference = json.loads(found)
            if reference.split("/")[:2] not in (["#", "$defs"], ["#", "definitions"]):
                raise _cannot(f"the reference {reference!r:.50}; use one to $defs")
        return {**schema, **definitions}

    def _lark(self, text: str) -> str:
        return in_lark(text, self._marks)


def _prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema without keywords that say nothing."""
    prepared = json.loads(json_grammar(schema))
    del prepared["x-guidance"]
    return prepared


def _cannot(what: str) -> UserError:
    return UserError(f"a call in this model's format cannot be held to {what}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_finite(schema: Any) -> bool:
    return isinstance(schema, Mapping) and bool(schema.keys() & {"const", "enum"})


def _any_of(texts: list[str]) -> str:
    return f"({' | '.join(texts)})" if texts else _NOTHING


def _search(pattern: str) -> str:
    """Returns a regular expression that may match anywhere in a text, as one of the whole text."""
    branches, depth = [[""]], 0
    for term in _TERM.findall(pattern):
        depth += (term == "(") - (term == ")")
        if term == "|" and not depth:
            branches.append([""])
        else:
            branches[-1].append(term)
    texts = []
    for branch in branches:
        begin, end = branch[1:2] == ["^"], branch[-1] == "$"
        text = "".join(branch[1 + begin : len(branch) - end])
        texts.append(f"{'' if begin else '(?s:.*)'}(?:{text}){'' if end else '(?s:.*)'}")
    return f"/{_slashed('|'.join(texts))}/"


def _slashed(pattern: str) -> str:
    """Returns a regular expression between slashes in llguidance's Lark."""
    from llguidance import regex_to_lark

    return regex_to_lark(pattern, "dw")
