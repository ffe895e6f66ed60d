"""JSON schemas as llguidance takes them: without what says nothing, what it lacks in other words
where that is exact, and the rest refused by name.

Schemas are read as those of the draft 2020-12, with the keywords of earlier drafts and of OpenAPI
that have no other meaning there. Nothing here calls itself, so that no schema is nested too deep.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dart_jax.errors import UserError

Schema = dict[str, Any]

# Formats of strings that llguidance knows; others are notes for the reader.
FORMATS = frozenset(
    {
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
    }
)  # fmt: skip

# Keywords that have schemas: by name; one or a list. Definitions count where they are referred to.
_NAMED_PARTS = {"properties", "patternProperties"}
_PARTS = {
    "additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems",
}  # fmt: skip
_DEFINITIONS = {"$defs", "definitions"}

# Keywords by which an object may need properties that `properties` does not name; those that
# describe it elsewhere; and all that describe one.
_OF_MORE = {
    "additionalProperties", "patternProperties", "minProperties", "propertyNames",
    "unevaluatedProperties",
}  # fmt: skip
_ELSEWHERE = {"allOf", "anyOf", "oneOf", "$ref"}
_OF_OBJECTS = {"properties", "required", *_OF_MORE, *_ELSEWHERE}

# Numbers of characters, items or properties.
_LEAST = {"minLength", "minItems", "minProperties"}
_MOST = {"maxLength", "maxItems", "maxProperties"}
# Bounds of numbers -> the sign of those that forbid little.
_SIGNS = {"minimum": -1, "maximum": 1, "exclusiveMinimum": -1, "exclusiveMaximum": 1}
_BOUNDS = {*_SIGNS, "multipleOf"}

# Keywords that allow the same texts whatever they say.
_NOTES = {
    "$comment", "$recursiveAnchor", "$schema", "$vocabulary", "default", "deprecated",
    "description", "examples", "readOnly", "title", "writeOnly",
}  # fmt: skip

# Keywords that llguidance lacks -> the type that they concern.
_LACKING = {
    "$dynamicRef": None, "$recursiveRef": None, "not": None, "if": None, "then": None, "else": None,
    "contains": "array", "minContains": "array", "maxContains": "array", "uniqueItems": "array",
    "unevaluatedItems": "array", "propertyNames": "object", "unevaluatedProperties": "object",
    "dependentRequired": "object", "dependentSchemas": "object", "dependencies": "object",
}  # fmt: skip

# All that may forbid a text.
_SAYING = {
    "type", "const", "enum", "format", "pattern", "nullable",
    *_LACKING, *_NAMED_PARTS, *_PARTS, *_OF_OBJECTS, *_LEAST, *_MOST, *_BOUNDS,
}  # fmt: skip

# Larger integers are rounded by llguidance; larger numbers of characters, items or properties, and
# bounds of numbers as far away as the ends of floats, are no limit.
_EXACT = 2**53
_NO_LIMIT = 2**31 - 1
_ENDLESS = 1e300

# How Pydantic began the pattern of decimals: what follows has a digit, and may be so long.
_DECIMAL = "^(?!^[-+.]*$)[+-]?0*"
_LENGTH = re.compile(r"\(\?=([^()$]*)\$\)")

# Formats of names of properties, as regular expressions.
_NAMES = {
    "date": "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


def prepared(schema: Mapping[str, Any] | bool | str) -> Schema:
    """Returns the same schema for llguidance: its objects have no other properties than those
    named, unless it says more of them.

    Args:
      schema: a JSON schema, also as JSON.

    Raises:
      RecursionError, TypeError, ValueError: it is no schema.
      UserError: it allows no text, or has a keyword that is not supported.
    """
    source = schema if isinstance(schema, str) else json.dumps(schema)
    root = json.loads(source, parse_float=_number, parse_constant=_no_number)
    if root is True:
        return {}
    if root is False:
        raise UserError("the JSON schema false allows no text; give another one")
    if not isinstance(root, dict):
        raise ValueError("it must be an object")
    root.pop("x-guidance", None)  # options of the compiler
    reached = Reached(root)
    for each in reached.schemas:
        _clean(each)
    _close(reached.schemas)
    for each in reached.schemas:
        _Rewriting(each, reached).do()
    return root


def _number(text: str) -> float | int:
    """A number as short as it can be written: 1.0 is the same as 1."""
    value = float(text)
    return int(value) if abs(value) <= _EXACT and value.is_integer() else value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


class Reached:
    """The schemas that say what a text may be: one, its parts, and what these refer to.

    Attributes:
      schemas: all of them, each once.
    """

    def __init__(self, root: Schema):
        self._root, self._by_name = root, dict[str, Any]()
        self._bases = {id(root): root}
        for each in _within(root):
            if isinstance(name := each.get("$id"), str):
                if name.startswith("#"):  # as an anchor was written once
                    each["$anchor"] = each.pop("$id").removeprefix("#")
                self._by_name.setdefault(name, each)
            for anchor in (each.get("$anchor"), each.pop("$dynamicAnchor", None)):
                if isinstance(anchor, str):
                    each["$anchor"] = anchor
                    self._by_name.setdefault(f"#{anchor}", each)
        self.schemas: list[Schema] = []
        todo, seen = [(root, root)], set[int]()
        while todo:
            each, base = todo.pop()
            if not isinstance(each, dict) or id(each) in seen:
                continue
            seen.add(id(each))
            self.schemas.append(each)
            base = each if isinstance(each.get("$id"), str) else base
            self._bases[id(each)] = base
            todo += [(part, base) for part in parts(each)]
            todo.append((self.target(each), base))

    def target(self, schema: Schema) -> Any:
        """What a schema refers to; None for nothing that is in the same document."""
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return None
        if reference in self._by_name:
            return self._by_name[reference]
        name, _, pointer = reference.partition("#")
        found = self._by_name.get(name) if name else self._bases.get(id(schema), self._root)
        for step in urllib.parse.unquote(pointer).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and step[:9].isdecimal() and int(step[:9]) < len(found):
                found = found[int(step)]
            else:
                found = found.get(step) if isinstance(found, dict) else None
        return None if pointer and not pointer.startswith("/") else found

    def meant(self, schema: Any) -> Any:
        """A schema, or what it refers to if it says nothing else."""
        for _ in self.schemas:
            if not isinstance(schema, dict) or schema.keys() & _SAYING != {"$ref"}:
                return schema
            schema = self.target(schema)
        return None


def parts(schema: Schema, of: frozenset[str] | set[str] = frozenset()) -> Iterator[Any]:
    """The schemas directly in one, and those under the names `of`."""
    for name, value in schema.items():
        if (name in _NAMED_PARTS or name in of) and isinstance(value, dict):
            yield from value.values()
        elif name in _PARTS:
            yield from value if isinstance(value, list) else [value]


def _within(root: Schema) -> list[Schema]:
    """A schema and all in it, also those that nothing refers to."""
    found, todo = [], [root]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            found.append(each)
            todo += parts(each, _DEFINITIONS)
    return found


def _clean(schema: Schema) -> None:
    """Leaves out keywords that say nothing; raises UserError for numbers that are rounded."""
    for name, value in [*schema.items()]:
        says = name not in _NOTES and (value is not None or name in ("const", "type"))
        if name == "format":
            says = isinstance(value, str) and value in FORMATS
        elif name == "required":
            says = value is not None and value is not False
        elif name in _LEAST:
            says = value is not None and value != 0
        elif name in _MOST:
            says = value is not None and not (type(value) is int and value >= _NO_LIMIT)
        elif name in _SIGNS and isinstance(value, int | float) and value * _SIGNS[name] > _EXACT:
            # Types of 64 bits have such bounds; those of floats forbid nothing.
            schema[name] = _EXACT * _SIGNS[name]
            says = abs(value) < _ENDLESS
        elif name in _BOUNDS or name in ("const", "enum"):
            _check_numbers(value)
        if not says:
            del schema[name]


def _check_numbers(value: Any) -> None:
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict | list):
            todo += each.values() if isinstance(each, dict) else each
        elif type(each) is int and abs(each) > _EXACT:
            raise UserError(f"the JSON schema has {each}, a number above 2**53; lower it")


def _close(schemas: list[Schema]) -> None:
    """Allows objects no other properties than those named, unless a schema says more of them: few
    clients mean that they may have some, but some models would add them for ever. Where a schema
    describes an object in several places, all stay as they are."""
    for each in schemas:
        places = len(each.keys() & _OF_OBJECTS)
        if isinstance(several := each.get("allOf"), list):
            places += len(several) - 1
        if places > 1 and each.keys() & _ELSEWHERE:
            return
    for each in schemas:
        properties, required = each.get("properties"), each.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            continue
        if not each.keys() & _OF_MORE and all(name in properties for name in required):
            each["additionalProperties"] = False


def _says_nothing(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and not schema.keys() & _SAYING)


class _Rewriting:
    """What llguidance lacks in one schema, in other words."""

    def __init__(self, schema: Schema, reached: Reached):
        self._schema, self._reached = schema, reached
        kind = schema.get("type", [])
        kinds = kind if isinstance(kind, list) else [kind]
        self._types = {each for each in kinds if isinstance(each, str)}  # empty: any

    def do(self) -> None:
        """Does all of it; raises UserError for what has no other words."""
        schema = self._schema
        for name, concerned in _LACKING.items():
            if name in schema and self._types and concerned and concerned not in self._types:
                del schema[name]
        if _says_nothing(schema.get("not")):
            schema.clear()
            schema["enum"] = []
            return
        self._one_of()
        self._names()
        self._decimal()
        if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
            # A name as it is, or encoded as in a URI; llguidance takes only the latter.
            schema["$ref"] = "#" + urllib.parse.quote(reference[1:], safe="/%!$&'()*+,;=:@?~")
        self._unevaluated()
        lacking = schema.keys() & _LACKING.keys()
        for name in [name for name in lacking if self._neutral(name, schema[name])]:
            del schema[name]
        for name in _LACKING:
            if name in schema:
                raise UserError(
                    f"the JSON schema has {name}, which is not supported where it forbids a text; "
                    "leave it out"
                )
        if schema.pop("nullable", None) is True:
            self._nullable()

    def _neutral(self, name: str, value: Any) -> bool:
        """True if a keyword forbids nothing here."""
        schema = self._schema
        if name == "not":
            return value is False
        if name == "uniqueItems":
            return value is False or schema.get("maxItems") in (0, 1)
        if name in ("if", "then", "else"):
            if "if" not in schema:
                return True
            return all(_says_nothing(schema.get(branch, True)) for branch in ("then", "else"))
        if name in ("contains", "minContains", "maxContains"):
            at_least = schema.get("minContains", 1)
            return "contains" not in schema or (at_least == 0 and "maxContains" not in schema)
        if name == "dependentRequired" or name == "dependentSchemas" or name == "dependencies":
            required = schema.get("required", [])
            return isinstance(value, dict) and all(
                all(other in required for other in each)
                if isinstance(each, list)
                else _says_nothing(each)
                for each in value.values()
            )
        return name.startswith("unevaluated") and _says_nothing(value)

    def _nullable(self) -> None:
        """Allows null as well, as OpenAPI 3.0 says it."""
        schema = self._schema
        if self._types and not schema.keys() & {"const", "enum", *_ELSEWHERE}:
            schema["type"] = sorted(self._types | {"null"})
        elif schema.keys() & _SAYING:
            rest = {name: schema.pop(name) for name in [*schema] if name in _SAYING}
            schema["anyOf"] = [rest, {"type": "null"}]

    def _one_of(self) -> None:
        """Makes `oneOf` an `anyOf` where at most one can hold, as with a discriminator."""
        schema, options = self._schema, self._schema.get("oneOf")
        if not isinstance(options, list) or "anyOf" in schema:
            return
        if _exclusive(options, self._reached.meant):
            items = [("anyOf" if name == "oneOf" else name, schema[name]) for name in schema]
            schema.clear()
            schema.update(items)

    def _names(self) -> None:
        """Describes names of properties by a further schema of the object."""
        if "propertyNames" not in self._schema:
            return
        names = self._reached.meant(self._schema.pop("propertyNames"))
        if (rule := _rule_of_names(names)) is not None:
            self._schema["allOf"] = [*self._schema.get("allOf", []), rule]

    def _decimal(self) -> None:
        """Writes Pydantic's pattern of decimals without looking ahead: several that all match."""
        schema, pattern = self._schema, self._schema.get("pattern")
        if not isinstance(pattern, str) or not pattern.startswith(_DECIMAL):
            return
        digits = pattern.removeprefix(_DECIMAL)
        lengths = _LENGTH.findall(digits)
        digits = _LENGTH.sub("", digits).replace("$", "")
        schema["pattern"] = f"^[+-]?0*{digits}$"
        patterns = ["[0-9]", *(f"^[+-]?0*{length}$" for length in lengths)]
        schema["allOf"] = [*schema.get("allOf", []), *({"pattern": each} for each in patterns)]

    def _unevaluated(self) -> None:
        """Closes an object or a list which no other schema describes."""
        schema = self._schema
        apart = not schema.keys() & {*_ELSEWHERE, "if", "not", "dependentSchemas", "contains"}
        if schema.get("unevaluatedItems") is False and (
            isinstance(schema.get("items"), bool | dict) or apart
        ):
            del schema["unevaluatedItems"]
            legacy = isinstance(schema.get("items"), list)
            schema.setdefault("additionalItems" if legacy else "items", False)
        if schema.get("unevaluatedProperties") is False:
            named = {} if apart else self._named()
            if "additionalProperties" not in schema and named is None:
                return
            del schema["unevaluatedProperties"]
            if "additionalProperties" not in schema:
                schema["properties"] = {**(named or {}), **schema.get("properties", {})}
                schema["additionalProperties"] = False

    def _named(self) -> dict[str, bool] | None:
        """The properties that `$ref` and `allOf` name; None if those have other keywords, too."""
        found, todo, seen = dict[str, bool](), [self._schema], set[int]()
        while todo:
            each = todo.pop()
            if not isinstance(each, dict) or id(each) in seen:
                continue
            seen.add(id(each))
            known = {"properties", "required", "type", "allOf", "$ref", "unevaluatedProperties"}
            if each.keys() & _SAYING - known:
                return None
            if "$ref" in each and self._reached.target(each) is None:
                return None
            found |= dict.fromkeys(each.get("properties", ()), True)
            todo += [*reversed(each.get("allOf", [])), self._reached.target(each)]
        return found


def _rule_of_names(names: Any) -> Schema | None:
    """A schema of objects whose properties have such names; None for any.

    Raises:
      UserError: names cannot be described so.
    """
    if names is False:
        return {"additionalProperties": False}
    said = {name: names[name] for name in names if name in _SAYING} if type(names) is dict else {}
    _clean(said)
    kind = said.get("type", "string")
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        said.pop("type", None)
    if not said and type(names) is dict:
        return None
    if said and said.keys() <= {"const", "enum"}:
        texts = said.get("enum", [said.get("const")])
        texts = [x for x in texts if isinstance(x, str) and x == said.get("const", x)]
        return {"properties": dict.fromkeys(texts, True), "additionalProperties": False}
    pattern = None
    if said.keys() == {"pattern"}:
        pattern = said["pattern"]
    elif said.keys() == {"format"} and said["format"] in _NAMES:
        pattern = f"^({_NAMES[said['format']]})$"
    elif said and said.keys() <= {"minLength", "maxLength"}:
        pattern = f"^(?s:.){{{said.get('minLength', 0)},{said.get('maxLength', '')}}}$"
    if isinstance(pattern, str):
        return {"patternProperties": {pattern: True}, "additionalProperties": False}
    raise UserError(
        "the JSON schema has propertyNames that are not supported; they may have one of enum, "
        "const, pattern, or lengths"
    )


def _exclusive(options: list[Any], meant: Callable[[Any], Any]) -> bool:
    """True if no two schemas can hold for the same value: they differ in their type, or in the
    values that they, or one property of them, may have."""
    values, types, objects = list[str](), list[str](), list[dict[str, list[str]]]()
    for option in map(meant, options):
        if not isinstance(option, dict) or "nullable" in option:
            return False
        kind = option.get("type", [])
        if (named := _values(option)) is not None:
            values += named
        elif kind == "object":
            properties, required = option.get("properties"), option.get("required", [])
            properties = properties if isinstance(properties, dict) else {}
            tags = {name: _values(meant(properties.get(name))) for name in required}
            objects.append({name: named for name, named in tags.items() if named is not None})
        elif kind:
            types += {_BEGINNINGS.get(x, x) for x in ([kind] if isinstance(kind, str) else kind)}
        else:
            return False
    types += ["object"] if objects else []
    if not _differ(values) or not _differ(types):
        return False
    if {_BEGINNINGS.get(value[0], "number") for value in values} & set(types):
        return False
    tags = [name for name in objects[0] if all(name in each for each in objects)] if objects else []
    return len(objects) < 2 or any(
        _differ([value for each in objects for value in each[name]]) for name in tags
    )


# First characters of JSON -> the type. A number may be an integer.
_BEGINNINGS = {
    '"': "string", "[": "array", "{": "object", "t": "boolean", "f": "boolean", "n": "null",
    "integer": "number",
}  # fmt: skip


def _differ(values: list[str]) -> bool:
    return len(set(values)) == len(values)


def _values(schema: Any) -> list[str] | None:
    """All values that a schema names, each as JSON; None if it names none."""
    if isinstance(schema, dict) and "const" in schema:
        return [json.dumps(schema["const"], sort_keys=True)]
    if isinstance(schema, dict) and isinstance(schema.get("enum"), list):
        return [*{json.dumps(value, sort_keys=True) for value in schema["enum"]}]
    return None
