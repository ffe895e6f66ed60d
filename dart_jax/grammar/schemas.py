"""JSON schemas as llguidance takes them: without what says nothing, and with what it lacks in other
words where that is exact. It refuses the rest by name.

Schemas are read as draft 2020-12, with the keywords of earlier drafts and of OpenAPI that have no
other meaning there. Nothing here calls itself, so that no schema is nested too deep.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError

Schema = dict[str, Any]

# Formats of strings that llguidance knows -> texts that have them, if not all. Other formats are
# notes for the reader.
_DATE = (
    "([0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|[02468][048]00|[13579][26]00)-02-29)"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
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
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
_WHOLE = ("date", "date-time", "ipv4", "time", "uuid")  # those of which these are all texts

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

# Keywords that allow the same texts with any value, and values of other keywords that do.
_NOTES = {
    "$comment", "$dynamicAnchor", "$recursiveAnchor", "$schema", "$vocabulary", "default",
    "description", "examples", "title",
}  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "minProperties": (0,),
    "not": (False,),
    "nullable": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "uniqueItems": (False,),
}

# Keywords that say where other schemas are.
_PLACES = {"$anchor", "$id", "components", *_DEFINITIONS}

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
    source = schema if isinstance(schema, str) else json.dumps(schema)
    root = json.loads(source, parse_float=_number)
    if root is True:
        return {}
    if root is False:
        raise UserError("the JSON schema false allows no text; give another one")
    if not isinstance(root, dict):
        raise ValueError("it must be an object")
    root.pop("x-guidance", None)  # options of the compiler
    schemas = _within(root)
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
        if isinstance(root, list) and step[:9].isdecimal() and int(step[:9]) < len(root):
            root = root[int(step[:9])]
        else:
            root = root.get(step) if isinstance(root, Mapping) else None
    return root


def _number(text: str) -> float | int:
    """A number as short as it can be written: 1.0 is the same as 1."""
    value = float(text)
    return int(value) if abs(value) <= _EXACT and value.is_integer() else value


def _within(root: Schema) -> list[Schema]:
    """A schema, all in it, and what these refer to: where that has a name, any definition."""
    named, found = {*_NAMED_PARTS}, dict[int, Schema]()
    todo: list[Any] = [root]
    while todo:
        each = todo.pop()
        if not isinstance(each, dict) or id(each) in found:
            continue
        if "$ref" in each:
            meant = target(root, each["$ref"])
            if meant is None and not named >= _DEFINITIONS:
                named |= _DEFINITIONS
                todo += found.values()
                found.clear()
            todo.append(meant)
        found[id(each)] = each
        for name, value in each.items():
            if name in named and isinstance(value, dict):
                todo += value.values()
            elif name in _PARTS:
                todo += value if isinstance(value, list) else [value]
    return [*found.values()]


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
    if schema.get("not") in (True, {}):
        del schema["not"]
        schema["enum"] = []
    if schema.pop("nullable", None) is not True:
        return
    # OpenAPI 3.0 allows null as well.
    if schema.keys() & {"const", "enum", *_ELSEWHERE}:
        rest = {name: schema.pop(name) for name in [*schema] if name not in _PLACES}
        schema["anyOf"] = [rest, {"type": "null"}]
    elif isinstance(types := schema.get("type"), str | list):
        schema["type"] = [*([types] if isinstance(types, str) else types), "null"]


def _is_exclusive(schema: Schema, root: Schema) -> bool:
    """True if at most one option of a `oneOf` can hold, since their types, values or a property
    tell which; llguidance does not look at all of that."""
    if not isinstance(options := schema.get("oneOf"), list):
        return False
    meant = list[Schema]()
    for option in options:
        said = option if isinstance(option, dict) else {}
        referred = target(root, said["$ref"]) if "$ref" in said else said
        known = isinstance(referred, dict) and "nullable" not in {*said, *referred}
        meant.append(referred if known else {})
    types = [each["type"] for each in meant if isinstance(each.get("type"), str)]
    by_type = len({"number" if each == "integer" else each for each in types}) == len(options)
    named = [each.get("enum", [each.get("const")]) for each in meant]
    values = [json.dumps(value, sort_keys=True) for each in named for value in each]
    by_value = all(each.keys() & {"const", "enum"} for each in meant)
    by_value = by_value and len({*values}) == len(values)
    teller = schema.get("discriminator")
    name = teller.get("propertyName") if isinstance(teller, dict) else None
    by_name = all(name in (each.get("properties") or ()) for each in meant)
    return by_type or by_value or by_name


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
    elif [*said] == ["format"] and said["format"] in _WHOLE:
        pattern = f"^({FORMATS[said['format']]})$"
    else:
        raise UserError(
            "the JSON schema has propertyNames that are not supported; they may have one of enum, "
            f"const, pattern, lengths, or a format ({', '.join(_WHOLE)})"
        )
    return {"patternProperties": {pattern: True}, "additionalProperties": False}
