"""JSON schemas as llguidance takes them: without what says nothing, and with what it lacks in other
words where that is exact. It refuses the rest by name.

Schemas are read as draft 2020-12, with the keywords of earlier drafts and of OpenAPI that have no
other meaning there. Nothing here calls itself, so that no schema is nested too deep.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from dart_jax.errors import UserError

Schema = dict[str, Any]

# Formats of strings that llguidance knows -> texts that have them, if not all. Other formats are
# notes for the reader.
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-][01][0-9]:[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = r"[a-zA-Z0-9]{1,63}([-.][a-zA-Z0-9]{1,30}){0,6}"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}W|([0-9]{1,4}D)?T[0-9]{1,4}[HMS]|[0-9]{1,4}[YMD])",
    "email": rf"[a-zA-Z0-9_+-]{{1,30}}(\.[a-zA-Z0-9_+-]{{1,30}})?@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uri": rf"[a-z]{{1,12}}://{_HOST}(:[0-9]{{1,4}})?(/[a-zA-Z0-9._~/?&=+-]*)?",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}

# Keywords that have schemas: by name; one or a list. OpenAPI has `schemas` in `components`.
_NAMED_PARTS = {"properties", "patternProperties", "$defs", "definitions", "schemas"}
_PARTS = {
    "additionalItems", "additionalProperties", "allOf", "anyOf", "components", "items", "oneOf",
    "prefixItems",
}  # fmt: skip

# Keywords by which an object may need properties that `properties` does not name; those that
# describe it elsewhere; and all that describe one.
_OF_MORE = {
    "additionalProperties", "patternProperties", "minProperties", "propertyNames",
    "unevaluatedProperties",
}  # fmt: skip
_ELSEWHERE = {"allOf", "anyOf", "oneOf", "$ref"}
_OF_OBJECTS = {"properties", "required", *_OF_MORE, *_ELSEWHERE}

# Keywords that allow the same texts with any value, and values of other keywords that do.
_NOTES = {
    "$comment", "$dynamicAnchor", "$recursiveAnchor", "$schema", "$vocabulary", "default",
    "description", "examples", "title",
}  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "not": (False,),
    "nullable": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "uniqueItems": (False,),
}

# Keywords that say where other schemas are.
_PLACES = {"$anchor", "$defs", "$id", "components", "definitions"}

# Bounds of numbers -> the sign of those that forbid little.
_SIGNS = {"minimum": -1, "maximum": 1, "exclusiveMinimum": -1, "exclusiveMaximum": 1}

# Larger integers are rounded by llguidance; larger numbers of characters, items or properties, and
# bounds of numbers as far away as the ends of floats, are no limit.
_EXACT = 2**53
_NO_LIMIT = 2**31 - 1
_ENDLESS = 1e300


def prepared(schema: Mapping[str, Any] | bool | str) -> Schema:
    """Returns the same schema for llguidance: its objects have no other properties than those
    named, unless it says more of them.

    Args:
      schema: a JSON schema, also as JSON.

    Raises:
      RecursionError, TypeError, ValueError: it is no schema.
      UserError: it allows no text, or cannot be said in other words.
    """
    root = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    if root is True:
        return {}
    if root is False:
        raise UserError("the JSON schema false allows no text; give another one")
    if not isinstance(root, dict):
        raise ValueError("it must be an object")
    root.pop("x-guidance", None)  # options of the compiler
    schemas = [*_within(root)]
    for each in schemas:
        _clean(each)
    _close(schemas)
    for each in schemas:
        _rewrite(each, root)
    return root


def target(root: Any, reference: Any) -> Any:
    """Returns what a reference to a place in a schema means, or None if nothing is there."""
    if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
        return None
    for step in urllib.parse.unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        root = root.get(step) if isinstance(root, Mapping) else None
    return root


def _within(root: Schema) -> Iterator[Schema]:
    """Yields a schema and all in it, also those that nothing refers to."""
    todo: list[Any] = [root]
    while todo:
        each = todo.pop()
        if not isinstance(each, dict):
            continue
        yield each
        for name, value in each.items():
            if name in _NAMED_PARTS and isinstance(value, dict):
                todo += value.values()
            elif name in _PARTS:
                todo += value if isinstance(value, list) else [value]


def _clean(schema: Schema) -> None:
    """Leaves out what says nothing; raises UserError for values that would be rounded."""
    for name, value in [*schema.items()]:
        says = name not in _NOTES and (value is not None or name in ("const", "type"))
        if value in _NEUTRAL.get(name, ()):
            says = False
        elif name == "format":
            says = isinstance(value, str) and value in FORMATS
        elif name in ("maxLength", "maxItems", "maxProperties"):
            says = value is not None and not (type(value) is int and value >= _NO_LIMIT)
        elif name in _SIGNS and isinstance(value, int | float) and value * _SIGNS[name] > _EXACT:
            # Types of 64 bits have such bounds; bounds of floats forbid nothing.
            schema[name] = _EXACT * _SIGNS[name]
            says = abs(value) < _ENDLESS
        elif name in ("const", "enum"):
            json.loads(json.dumps(value), parse_int=_exact)
        if not says:
            del schema[name]


def _exact(digits: str) -> int:
    if abs(value := int(digits)) > _EXACT:
        raise UserError(f"the JSON schema has {value}, a number above 2**53; lower it")
    return value


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


def _rewrite(schema: Schema, root: Schema) -> None:
    """Puts what llguidance lacks in other words."""
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        # A name as it is, or encoded as in a URI; llguidance takes only the latter.
        schema["$ref"] = "#" + urllib.parse.quote(reference[1:], safe="/%!$&'()*+,;=:@?~")
    if "anyOf" not in schema and _is_exclusive(schema, root):
        items = [("anyOf" if name == "oneOf" else name, schema[name]) for name in schema]
        schema.clear()
        schema.update(items)
    if "propertyNames" in schema:
        rule = _rule_of_names(schema.pop("propertyNames"), root)
        schema["allOf"] = [*schema.get("allOf", []), rule]
    if schema.pop("nullable", None) is True:  # as OpenAPI 3.0 allows null as well
        rest = {name: schema.pop(name) for name in [*schema] if name not in _PLACES}
        schema["anyOf"] = [rest, {"type": "null"}]


def _is_exclusive(schema: Schema, root: Schema) -> bool:
    """True if at most one option of a `oneOf` can hold, since a property or their types tell which;
    llguidance looks at neither where they refer to other schemas."""
    if not isinstance(options := schema.get("oneOf"), list):
        return False
    types = list[Any]()
    for option in options:
        meant = target(root, option.get("$ref")) or option if isinstance(option, dict) else {}
        of_any = "nullable" in option or "nullable" in meant
        types.append(None if of_any else meant.get("type"))
    told = {"number" if each == "integer" else each for each in types if isinstance(each, str)}
    return "discriminator" in schema or len(told) == len(options)


def _rule_of_names(names: Any, root: Schema) -> Schema:
    """A schema of objects whose properties have such names; raises UserError if there is none."""
    if isinstance(names, dict) and "$ref" in names:
        names = target(root, names["$ref"])
    said: Schema = {**names} if isinstance(names, dict) else {"not": {}}
    _clean(said)
    if said.get("type") == "string":
        del said["type"]
    if not said:
        return {}
    if [*said] in (["enum"], ["const"]):
        values: list[Any] = said.get("enum", [said.get("const")])
        texts = [value for value in values if isinstance(value, str)]
        return {"properties": dict.fromkeys(texts, True), "additionalProperties": False}
    if [*said] == ["pattern"]:
        pattern = said["pattern"]
    elif said and said.keys() <= {"minLength", "maxLength"}:
        pattern = f"^(?s:.){{{said.get('minLength', 0)},{said.get('maxLength', '')}}}$"
    elif [*said] == ["format"]:
        pattern = f"^({FORMATS[said['format']]})$"
    else:
        raise UserError(
            "the JSON schema has propertyNames that are not supported; they may have one of enum, "
            "const, pattern, format, or lengths"
        )
    return {"patternProperties": {pattern: True}, "additionalProperties": False}
