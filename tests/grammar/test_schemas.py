"""JSON schemas: what says nothing changes nothing, and what llguidance lacks is honoured or refused
by name."""

import copy
import datetime
import json
import pathlib
import uuid
from typing import Annotated, Any, Literal

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
    GRAMMARS.check(StructuredOutputs(json=noisy))
    names = {name for keywords in noise for name in keywords}
    left = json.loads(
        json.dumps(prepared(noisy)),
        object_hook=lambda part: {name: part[name] for name in part if name not in names},
    )
    assert left == prepared(schema)


def test_formats_are_those_of_llguidance():
    others = {"path", "binary", "byte", "uri-reference", "regex", "int32", "idn-email", "iri"}
    for name in (*FORMATS, *others):
        source = llguidance.LLMatcher.grammar_from_json_schema({"type": "string", "format": name})
        refused = bool(llguidance.LLMatcher.validate_grammar(source))
        assert refused == (name not in FORMATS), name


COLOURS = {"type": "string", "enum": ["red", "green"]}
CAT = {"type": "object", "properties": {"k": {"const": "cat"}}, "required": ["k"]}
DOG = {"type": "object", "properties": {"k": {"enum": ["dog", "pug"]}}, "required": ["k"]}
BASE = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = BASE | {"nullable": True}
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
        *(
            ({"type": "object", "propertyNames": {"format": name}}, [f'{{"{good}": 1}}'],
             [f'{{"{bad}": 1}}'])
            for name, good, bad in (
                ("date", "2024-01-31", "2023-04-31"),
                ("date", "2024-02-29", "2023-02-29"),
                ("date-time", "2000-02-29T23:59:59.123456+05:30", "2024-01-31"),
                ("uuid", "ABCDEF01-2345-6789-abcd-ef0123456789", "a"),
            )
        ),
        # Null, as OpenAPI says it.
        (COLOURS | {"nullable": True}, ['"red"', "null"], ['"blue"']),
        (
            {"properties": {"a": {"$ref": "#/$defs/c", "nullable": True}}, "$defs": {"c": COLOURS}},
            ['{"a": null}', '{"a": "red"}'],
            ['{"a": 1}'],
        ),
        (BASE | {"nullable": True}, ["null", '{"a": 1}'], ['{"b": 1}', '{"a": null}']),
        (
            {"type": ["object", "null"], "properties": {"a": {"$ref": "#/properties/b"},
                "b": COLOURS}, "nullable": True},
            ["null", '{"a": "red"}'],
            ["1", '{"a": 1}'],
        ),
        # One of several that exclude each other.
        ({"oneOf": [CAT, DOG]}, ['{"k": "cat"}', '{"k": "pug"}'], ['{"k": "cow"}']),
        (REFERRED | {"discriminator": {"propertyName": "k"}}, ['{"k": "dog"}'], ['{"k": 1}']),
        ({"oneOf": [{"const": 2.0}, {"enum": [3, "3"]}]}, ["2", "3", '"3"'], ["4"]),
        (
            {"oneOf": [{"$ref": "#/$defs/c"}, {"type": "null"}], "$defs": {"c": CAT}},
            ['{"k": "cat"}', "null"],
            ["1"],
        ),
        # References.
        ({"$ref": "#/$defs/A[ž<b>]", "$defs": {"A[ž<b>]": COLOURS}}, ['"red"'], ['"blue"']),
        (
            {"$ref": "#/components/schemas/B%3Ca~1b%3E", "components": {"schemas": {
                "B<a/b>": {"type": "string", "format": "path"}}}},
            ['"x"'],
            ["1"],
        ),
        *(
            ({"type": "array", "items": {"$ref": reference}} | rest, ["[null]"], ['[{"b": 1}]'])
            for reference, rest in (
                ("#/$defs/v1/title", {"$defs": {"v1": {"title": CLOSED}}}),
                ("#/x/anyOf/1", {"x": {"anyOf": [True, CLOSED]}}),
                ("#here", {"$defs": {"a": CLOSED | {"$anchor": "here"}}}),
                ("https://a.org/a", {"definitions": {"a": CLOSED | {"$id": "https://a.org/a"}}}),
            )
        ),
        (
            BASE | {"$defs": {"a": {"allOf": [BASE, BASE]}, "b": {"const": 2**60},
                "c": {"propertyNames": {"minLength": 1, "enum": []}}}},  # nothing refers to these
            ['{"a": 1}'],
            ['{"b": 1}'],
        ),
        # Bounds that types of 64 bits and floats have.
        *(
            ({"type": kind, "minimum": -end, "maximum": end}, [str(2**53), "-1"], ['"a"'])
            for kind in ("integer", "number")
            for end in (2**63 - 1, 1e19, 3.4e38)
        ),
        ({"type": "number", "minimum": -1.797e308, "maximum": 1.797e308}, ["1e200", "-2"], ["a"]),
        ({"type": "string", "maxLength": 2**63 - 1}, ['"a"'], ["1"]),
        # Others.
        ({"type": "string", "minLength": 2.0, "maxLength": 3e0}, ['"ab"'], ['"a"', '"abcd"']),
        (BASE | {"minProperties": 0}, ['{"a": 1}'], ['{"b": 1}']),
        ({"properties": {"a": {"not": {}}}}, ["{}"], ['{"a": 1}']),
        ({"const": None}, ["null"], ["1"]),
        ({"type": "object", "additionalProperties": {}}, ['{"a": 1}'], ["[]"]),
        ({"type": "string", "maxLength": None, "description": "\ud800"}, ['"a"'], ["1"]),
        ({"type": "string", "format": "date"}, ['"2020-02-03"'], ['"2020-02-33"']),
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
        *(
            ({name: value}, name)
            for name, value in {
                "contains": {"const": 1}, "dependentRequired": {"a": ["b"]},
                "dependentSchemas": {"a": {"const": 1}}, "if": {"const": 1}, "not": {"const": 1},
                "unevaluatedItems": False, "unevaluatedProperties": False, "uniqueItems": True,
                "$dynamicRef": "#a",
            }.items()
        ),
        ({"propertyNames": {"enum": [1], "type": "integer"}}, "propertyNames"),
        ({"propertyNames": {"$ref": "#/nowhere"}}, "propertyNames"),
        ({"oneOf": [BASE, {"type": "object"}]}, "oneOf whose options may hold at once"),
        (REFERRED, "oneOf whose options may hold at once"),
        (
            {"oneOf": [BASE, {"type": "object"}], "discriminator": {"propertyName": "a"}},
            "oneOf whose options may hold at once",
        ),
        ({"oneOf": [{"$ref": "#/title"}, BASE], "title": "a"}, "the JSON schema cannot be used"),
        ({"propertyNames": {"format": "email"}}, "or a format (date, "),
        ({"$ref": "https://example.org/a"}, "https://example.org/a"),
        ({"const": "\ud800"}, "surrogates"),
        ({"const": 2**63 - 1}, "a number above 2**53"),
        ({"enum": [[2**63 - 1]]}, "a number above 2**53"),
        ("[]", "it must be an object"),
        ("false", "false allows no text"),
    ],
)  # fmt: skip
def test_refused_by_name(schema, message):
    with pytest.raises(UserError) as caught:
        GRAMMARS.check(StructuredOutputs(json=schema))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_clients_have_no_options_of_the_compiler():
    schema = {"type": "array", "x-guidance": {"lenient": True, "whitespace_pattern": " *"}}
    assert not follows("[1,  2]", json=schema)
    with pytest.raises(UserError, match="uniqueItems"):
        GRAMMARS.check(StructuredOutputs(json={**schema, "uniqueItems": True}))


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, pydantic.Field(ge=0, le=9)] | None = None
    home: pathlib.Path | None = None


class Dog(pydantic.BaseModel):
    kind: Literal["dog", "pug"]
    born: datetime.date | None = None
    secret: pydantic.SecretStr | None = None


class Zoo(pydantic.BaseModel):
    animals: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]
    colours: dict[Literal["red", "green"], int] = {}
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
    text, follows = zoo.model_dump_json(), judge(json=Zoo.model_json_schema())
    assert follows(text)
    assert follows(json.dumps(json.loads(text), indent=2))
    for place, wrong in (("lives", "10"), ("kind", '"cow"'), ("green", '"x"')):
        assert not follows(text.replace(f'"{place}":', f'"{place}":{wrong},"x":'))


@pytest.mark.parametrize(
    ("between", "good"),
    [
        *((space, True) for space in ("", " ", "\n", "\n\n", "\n\t", "\n" + " " * 20, "\n\n  ")),
        *((space, False) for space in ("  ", " \n", "\n\n\n", "\n \n", "\n" + " " * 21)),
    ],
)
def test_space_between_the_parts_of_json(between, good):
    text = f'{{{between}"a"{between}:{between}[1{between},{between}{{}}]{between}}}'
    assert follows(text, json_object=True) == good


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
    ends = "".join({"{": "}", "[": "]"}.get(sign, "") for sign in reversed(part))
    with pytest.raises(UserError, match="the JSON schema is nested too deep"):
        GRAMMARS.check(StructuredOutputs(json=part * 20_000 + "1" + ends * 20_000))
