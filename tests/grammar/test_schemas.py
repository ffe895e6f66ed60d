"""JSON schemas: what says nothing changes nothing, and what llguidance lacks is honoured or refused
by name."""

import copy
import datetime
import enum
import ipaddress
import json
import pathlib
import re
import uuid
from typing import Annotated, Any, Literal

import jsonschema
import llguidance
import pydantic
import pytest
from grammar_texts import GRAMMARS, follows, judge
from hypothesis import given
from hypothesis import strategies as st
from json_schemas import NOISE, SCHEMAS

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.grammar.schemas import FORMATS, prepared


@given(SCHEMAS, st.lists(NOISE))
def test_noise_changes_nothing(schema, noise):
    """Keywords that forbid no text may be anywhere in a schema."""
    noisy, places = copy.deepcopy(schema), []

    def collect(part):
        places.append(part)
        for each in [*part.get("properties", {}).values(), *part.get("anyOf", [])]:
            collect(each)
        if "items" in part:
            collect(part["items"])

    collect(noisy)
    for place, keywords in zip(places, noise, strict=False):
        place |= {name: keywords[name] for name in keywords.keys() - place.keys()}
    assert _known(prepared(noisy)) == _known(prepared(schema))
    jsonschema.Draft202012Validator.check_schema(noisy)


def _known(schema):
    """A schema without keywords that nobody knows."""
    text = json.dumps(schema, sort_keys=True)
    unknown = ("x-order", "xml", "externalDocs", "discriminator", "example", "$anchor", "$defs")
    return json.loads(text, object_hook=lambda x: {k: v for k, v in x.items() if k not in unknown})


def test_formats_are_those_of_llguidance():
    others = {"path", "binary", "byte", "uri-reference", "regex", "int32", "idn-email", "iri"}
    for name in FORMATS | others:
        source = llguidance.LLMatcher.grammar_from_json_schema({"type": "string", "format": name})
        refused = bool(llguidance.LLMatcher.validate_grammar(source))
        assert refused == (name not in FORMATS), name
    assert follows('"2020-02-03"', json={"type": "string", "format": "date"})
    assert not follows('"2020-02-33"', json={"type": "string", "format": "date"})
    assert follows('"x y"', json={"type": "string", "format": "path"})


COLOURS = {"type": "string", "enum": ["red", "green"]}
CAT = {"type": "object", "properties": {"k": {"const": "cat"}}, "required": ["k"]}
DOG = {"type": "object", "properties": {"k": {"enum": ["dog", "pug"]}}, "required": ["k"]}
BASE = {"type": "object", "properties": {"a": {"type": "integer"}}}
REFERRED = {"oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}], "$defs": {"c": CAT, "d": DOG}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # Names of properties.
        (
            {"propertyNames": {"$ref": "#/$defs/c"}, "additionalProperties": {"type": "integer"}}
            | {"type": "object", "$defs": {"c": COLOURS}},
            ["{}", '{"red": 1, "green": 2}'],
            ['{"blue": 1}', '{"red": "x"}'],
        ),
        ({"type": "object", "propertyNames": {"const": "a"}}, ['{"a": [1]}'], ['{"b": 1}']),
        (
            {"type": "object", "propertyNames": {"pattern": "^x"}, "properties": {"xy": COLOURS}},
            ['{"xy": "red", "xz": 1}', '{"x": 1}'],
            ['{"y": 1}', '{"xy": "blue"}'],
        ),
        (
            {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}},
            ['{"éé": 1}', '{"abc": 1}'],
            ['{"a": 1}', '{"abcd": 1}'],
        ),
        (
            {"type": "object", "propertyNames": {"format": "uuid"}},
            ['{"00000000-0000-4000-8000-000000000000": 1}'],
            ['{"0000": 1}'],
        ),
        ({"type": "object", "propertyNames": False}, ["{}"], ['{"a": 1}']),
        ({"type": "string", "propertyNames": {"format": "date-time"}}, ['"a"'], ["{}"]),
        # Null, as OpenAPI says it.
        ({"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
        ({"type": "string", "nullable": False}, ['"a"'], ["null"]),
        (COLOURS | {"nullable": True}, ['"red"', "null"], ['"blue"']),
        (
            {"properties": {"a": {"$ref": "#/$defs/c", "nullable": True}}, "$defs": {"c": COLOURS}},
            ['{"a": null}', '{"a": "red"}'],
            ['{"a": 1}'],
        ),
        (BASE | {"nullable": True}, ["null", '{"a": 1}'], ['{"b": 1}', '{"a": null}']),
        # One of several that exclude each other.
        ({"oneOf": [CAT, DOG]}, ['{"k": "cat"}', '{"k": "pug"}'], ['{"k": "cow"}']),
        (REFERRED | {"discriminator": {"propertyName": "k"}}, ['{"k": "dog"}'], ['{"k": 1}']),
        ({"oneOf": [{"const": 1}, {"const": 2.0}, {"type": "string"}]}, ["2", '"a"'], ["3"]),
        ({"oneOf": [CAT, {"type": "null"}, {"type": "integer"}]}, ["null", "5"], ["1.5"]),
        # Nothing more than what is named.
        (BASE | {"unevaluatedProperties": False}, ['{"a": 1}'], ['{"b": 1}']),
        (BASE | {"unevaluatedProperties": True}, ['{"b": 1}'], ['{"a": "x"}']),
        (
            {"allOf": [BASE, {"$ref": "#/$defs/b"}], "unevaluatedProperties": False}
            | {"$defs": {"b": {"properties": {"b": COLOURS}}}, "properties": {"c": {}}},
            ['{"c": 1, "a": 1, "b": "red"}'.replace('"c": 1, ', ""), '{"a": 1}'],
            ['{"d": 1}', '{"a": "x"}', '{"b": 1}'],
        ),
        (
            {"type": "array", "prefixItems": [COLOURS], "unevaluatedItems": False},
            ['["red"]', "[]"],
            ['["red", 1]'],
        ),
        # Nothing at all.
        ({"type": "object", "properties": {"a": {"not": {}}}}, ["{}"], ['{"a": 1}']),
        ({"type": "array", "items": {"not": {}}}, ["[]"], ["[1]"]),
        ({"type": "object", "additionalProperties": {"not": {}}}, ["{}"], ['{"a": 1}']),
        # References.
        ({"$ref": "#a", "$defs": {"b": COLOURS | {"$id": "#a"}}}, ['"red"'], ['"blue"']),
        ({"$ref": "#a", "$defs": {"b": COLOURS | {"$dynamicAnchor": "a"}}}, ['"red"'], ["1"]),
        (
            {"$ref": "#/components/schemas/B%3Ca~1b%3E", "components": {"schemas": {
                "B<a/b>": {"type": "string", "format": "path"}}}},
            ['"x"'],
            ["1"],
        ),
        ({"$ref": "#/$defs/A[ž<b>]", "$defs": {"A[ž<b>]": COLOURS}}, ['"red"'], ['"blue"']),
        # Bounds that types of 64 bits have.
        *(
            ({"type": kind, "minimum": -end, "maximum": end}, [str(2**53), "-1"], ['"a"'])
            for kind in ("integer", "number")
            for end in (2**63 - 1, 2**64, 1e19, 3.4e38)
        ),
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 2**64}, ["0", "17"], ["-1"]),
        ({"type": "number", "minimum": -1.797e308, "maximum": 1.797e308}, ["1e200", "-2"], ["a"]),
        ({"type": "number", "minimum": 0, "maximum": 1.797e308}, ["5.5"], ["-2"]),
        # Others.
        ({"const": None}, ["null"], ["1"]),
        ({"type": "array", "maxItems": 2**63 - 1, "minItems": 1.0}, ["[1]"], ["[]"]),
        ({"type": "object", "additionalProperties": {}}, ['{"a": 1}'], ["[]"]),
        ({"type": "string", "maxLength": None, "$schema": "https://example.org"}, ['"a"'], ["1"]),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1, 1]"]),
        ({"type": "string", "description": "\ud800"}, ['"a"'], ["1"]),
        ({}, ["1", "{}", '"a"'], ["a"]),
    ],
)  # fmt: skip
def test_honoured(schema, good, bad):
    follows = judge(json=schema)
    assert [text for text in good if not follows(text)] == []
    assert [text for text in bad if follows(text)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"not": {"const": 1}}, "has not,"),
        ({"if": {"const": 1}, "then": {"type": "integer"}}, "has if,"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"type": "object", "propertyNames": {"enum": [1], "type": "integer"}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"pattern": "a", "minLength": 1}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"$ref": "#/nowhere"}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"not": {"const": "a"}}}, "propertyNames"),
        ({"anyOf": [BASE], "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"oneOf": [BASE, {"type": "object"}]}, "oneOf whose options may hold at once"),
        ({"$ref": "https://example.org/a"}, "https://example.org/a"),
        ({"const": float("nan")}, "NaN is no number"),
        ({"const": "\ud800"}, "surrogates"),
        ({"const": 2**63 - 1}, "a number above 2**53"),
        ({"enum": [2**63 - 1]}, "a number above 2**53"),
        ({"minimum": 2**63 - 1}, "a number above 2**53"),
        ({"exclusiveMaximum": -(2**63)}, "a number above 2**53"),
        ({"not": {}}, "Unsatisfiable"),
        ("[]", "it must be an object"),
        ("false", "false allows no text"),
    ],
)
def test_refused_by_name(schema, message):
    with pytest.raises(UserError) as caught:
        GRAMMARS.check(StructuredOutputs(json=schema))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


LESS = r"(?:\d{0,1}|(?=[\d.]{1,4}0*$)\d{0,1}\.\d{0,2}0*$)"


@pytest.mark.parametrize(
    ("digits", "bad"),
    [
        (r"\d*\.?\d*$", []),
        (LESS, ["0.123", "10.5"]),
        (r"(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d*\.\d*0*$)", ["0.1234", "12.34", "1234"]),
        (r"\d*\.?\d{0,2}0*$", ["0.123"]),
    ],
)
def test_decimals(digits, bad):
    """As Pydantic wrote them. What it left open at the end by mistake, is closed."""
    pattern = rf"^(?!^[-+.]*$)[+-]?0*{digits}"
    follows = judge(json={"anyOf": [{"type": "string", "pattern": pattern}, {"type": "null"}]})
    for text in ("0", "7", "-1.5", "+00.25", ".5", "5.", "007.500"):
        assert follows(f'"{text}"'), text
        assert re.search(pattern, text)
    for text in (*bad, "", "-", "+.", ".", "1e5", "1.2.3", "a"):
        assert not follows(f'"{text}"'), text


@pytest.mark.parametrize("options", [{"lenient": True}, {"whitespace_pattern": " *"}, 5])
def test_clients_have_no_options_of_the_compiler(options):
    schema = {"type": "array", "items": {"type": "integer"}}
    assert prepared({**schema, "x-guidance": options}) == schema
    assert not follows("[1,  2]", json={**schema, "x-guidance": options})
    with pytest.raises(UserError, match="uniqueItems"):
        GRAMMARS.check(StructuredOutputs(json={"x-guidance": options, "uniqueItems": True}))


def test_no_keyword_of_the_standard_is_forgotten():
    """Every keyword of the draft 2020-12 is honoured, harmless, or refused by name: llguidance
    would refuse it in its own words."""
    from dart_jax.grammar import schemas

    referred = {"$ref", "$defs", "$id", "$anchor", "$dynamicAnchor"}
    silent = {"contentEncoding", "contentMediaType", "contentSchema"}
    known = schemas._SAYING | schemas._NOTES | referred | silent
    validator = jsonschema.Draft202012Validator
    assert validator.VALIDATORS.keys() - known == set()


class Colour(enum.Enum):
    RED, GREEN = "red", "green"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, pydantic.Field(ge=0, le=9)] | None = None
    home: pathlib.Path | None = None


class Dog(pydantic.BaseModel):
    kind: Literal["dog", "pug"]
    born: datetime.date | None = None
    network: ipaddress.IPv4Network | None = None
    secret: pydantic.SecretStr | None = None
    blob: bytes | None = None


class Zoo(pydantic.BaseModel):
    animals: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]
    colours: dict[Colour, int] = {}
    names: dict[Annotated[str, pydantic.Field(min_length=1)], int] = {}
    ids: dict[uuid.UUID, int] = {}
    paths: dict[pathlib.Path, Any] = {}
    pair: tuple[int, str] | None = None


def test_what_pydantic_writes():
    zoo = Zoo(
        animals=[Cat(lives=3, home=pathlib.Path("/a")), Dog(kind="pug", born="2020-01-02")],
        colours={"green": 5},
        names={"a": 1},
        ids={uuid.UUID(int=4): 1},
        paths={"/b": [1]},
        pair=(1, "x"),
    )
    schema = Zoo.model_json_schema()
    text = zoo.model_dump_json()
    assert follows(text, json=schema)
    assert follows(json.dumps(json.loads(text), indent=2), json=schema)
    for place, wrong in (("lives", "10"), ("kind", '"cow"'), ("green", '"x"')):
        assert not follows(text.replace(f'"{place}":', f'"{place}":{wrong},"x":'), json=schema)


@pytest.mark.parametrize("space", ["", " ", "\n", "\n\n", "\n\t", "\n" + " " * 20, "\n\n  "])
@pytest.mark.parametrize("more", ["", " ", "\n"])
def test_space_between_the_parts_of_json(space, more):
    between = space + more
    text = f'{{{between}"a"{between}:{between}[1{between},{between}{{}}]{between}}}'
    plain = between.lstrip("\n")
    breaks = len(between) - len(plain)
    indented = breaks in (1, 2) and len(plain) <= 20 and "\n" not in plain
    assert follows(text, json_object=True) == (between in ("", " ") or indented)


def test_options_of_json_are_for_json():
    for structure in ({"regex": "a"}, {"choice": ["a"]}, {"grammar": 'root ::= "a"'}):
        with pytest.raises(UserError, match="disable_any_whitespace is for JSON"):
            StructuredOutputs.of({**structure, "disable_any_whitespace": True})
    with pytest.raises(UserError, match="must be true or false"):
        StructuredOutputs.of({"json_object": True, "disable_any_whitespace": 1})
    assert follows('{"a":1}', json_object=True, disable_any_whitespace=True)
    assert not follows('{"a": 1}', json_object=True, disable_any_whitespace=True)


@pytest.mark.parametrize("part", ['{"items":', '{"properties":{"a":', '{"allOf":[', "["])
def test_deep_schemas(part):
    ends = part.replace("[", "]").replace("{", "}").translate({ord(c): None for c in '":aiteml'})
    text = part * 20_000 + "1" + "".join(reversed(ends)) * 20_000
    with pytest.raises(UserError, match="the JSON schema is nested too deep"):
        GRAMMARS.check(StructuredOutputs(json=text))
