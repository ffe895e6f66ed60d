"""Fields of requests: the structures that they ask for, and values that change nothing."""

import json

import pytest
from pydantic import ValidationError

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.serve.body.errors import ApiError
from dart_jax.serve.body.fields import ChatFields, CompletionFields
from dart_jax.serve.body.neutral import HARMLESS, NEUTRAL
from dart_jax.serve.body.structure import structure_of

REQUIRED = {ChatFields: {"messages": [{"role": "user"}]}, CompletionFields: {"prompt": "a"}}
both = pytest.mark.parametrize("kind", REQUIRED)


def fields_of(kind=ChatFields, **fields):
    return kind.model_validate_json(json.dumps(REQUIRED[kind] | fields))


def refused(name):
    return pytest.raises(ApiError, match=f"{name} is not supported by this server")


@pytest.mark.parametrize(
    ("response_format", "structure"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_object", "schema": True}, {"json_object": True}),
        ({"type": "json_object", "schema": {"const": 1}}, {"json": {"const": 1}}),
        ({"type": "json_schema", "schema": {}}, {"json": {}}),
        ({"type": "json_schema", "json_schema": {"schema": {"const": 1}}}, {"json": {"const": 1}}),
    ],
)
def test_formats(response_format, structure):
    """Any schema is any JSON value, and `json_object` any object."""
    expected = None if structure is None else ("response_format", structure)
    assert structure_of(fields_of(response_format=response_format)) == expected
    with pytest.raises(ApiError, match=r"response_format.json_schema.schema is missing"):
        structure_of(fields_of(response_format={"type": "json_schema"}))


def test_options_of_structured_outputs():
    neutral = {"disable_fallback": True, "disable_additional_properties": False}
    compact = {"json": {"const": 1}, "disable_any_whitespace": True}
    name, structure = structure_of(fields_of(structured_outputs=compact | neutral))
    assert (name, structure) == ("structured_outputs", compact)
    assert StructuredOutputs.of(structure).disable_any_whitespace
    for wrong in ({"disable_additional_properties": True}, {"whitespace_pattern": " "}):
        asked = structure_of(fields_of(structured_outputs={"json_object": True} | wrong))
        with pytest.raises(UserError, match=f"have no {next(iter(wrong))}"):
            StructuredOutputs.of(asked[1])


@pytest.mark.parametrize(
    "fields",
    [
        *({name: ""} for name in ("grammar", "ebnf", "regex", "guided_json", "json_schema")),
        {"guided_choice": [], "guided_json_object": False, "guided_grammar": ""},
        {"structured_outputs": {"json": None, "regex": "", "choice": [], "json_object": False}},
        {"structured_outputs": {"disable_any_whitespace": False, "whitespace_pattern": None}},
    ],
)
def test_empty_fields_ask_for_nothing(fields):
    assert structure_of(fields_of(**fields)) is None
    assert structure_of(fields_of(**fields, guided_regex="a")) == ("guided_regex", {"regex": "a"})


@both
def test_neutral_and_harmless_fields(kind):
    """Other values are refused by name, and truth is no number."""
    for name, values in NEUTRAL.items():
        if name not in kind.model_fields:
            for value in values:
                fields_of(kind, **{name: value})
            for value in ("other", 2, 0.5, ["x"], {"x": 1}):
                with refused(name):
                    fields_of(kind, **{name: value, "presence_penalty": 0.5})
    for name in HARMLESS:
        fields_of(kind, **{name: 5})
    assert not HARMLESS & NEUTRAL.keys()
    for name, value in (("repeat_penalty", True), ("mirostat", False), ("detokenize", 1)):
        with refused(name):
            fields_of(kind, **{name: value})
    for penalty in ({}, {"presence_penalty": 0.0, "frequency_penalty": None}):
        fields_of(kind, **penalty, repeat_last_n=64)  # it reaches nothing


@both
def test_values(kind):
    """1.0 is 1, -1 no limit, and an empty list of biases none."""
    whole = {"max_tokens": 16, "top_k": 40, "seed": 1, "n": 2, "min_tokens": 3}
    found = fields_of(kind, **{name: float(value) for name, value in whole.items()})
    assert all(type(getattr(found, name)) is int for name in whole)
    assert found.model_dump(include=whole.keys()) == whole
    assert fields_of(kind, max_tokens=-1.0).most_tokens is None
    assert fields_of(kind, top_k=-1).sampling({}).top_k == 0
    assert fields_of(kind, logit_bias=[]).logit_bias == {}
    assert fields_of(kind, logit_bias={"5": 1}).logit_bias == {5: 1}
    assert fields_of(kind, stop="x").stop == ["x"]
    assert not fields_of(kind, stream_options={"include_usage": None}).stream_options.include_usage
    for wrong in ({"max_tokens": -2}, {"max_tokens": 1.5}, {"logit_bias": [1]}, {"n": True}):
        with pytest.raises(ValidationError):
            fields_of(kind, **wrong)


def test_no_limit_by_other_names():
    """Completions have a limit by default, so that there it would change the text."""
    assert fields_of(max_completion_tokens=-1, n_predict=-1).most_tokens is None
    with pytest.raises(ValidationError):
        fields_of(n_predict=5)
    with refused("n_predict"):
        fields_of(CompletionFields, n_predict=-1)


@pytest.mark.parametrize("prompt", [3, [], [[]], ["a", 3], [1.5], [True], {"a": 1}, [["a"]]])
def test_prompts_that_are_none(prompt):
    with pytest.raises(ValidationError, match="must be a text, token ids, or a list of"):
        fields_of(CompletionFields, prompt=prompt)
