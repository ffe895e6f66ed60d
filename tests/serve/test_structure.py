"""The structure that a request asks for, and values of fields that change nothing."""

import json

import pytest
from pydantic import ValidationError

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.serve.body.errors import ApiError
from dart_jax.serve.body.fields import ChatFields, CompletionFields
from dart_jax.serve.body.neutral import HARMLESS, NEUTRAL
from dart_jax.serve.body.structure import structure_of

CHAT = {"messages": [{"role": "user", "content": "a"}]}
COMPLETION = {"prompt": "a"}


def asked(**fields):
    return structure_of(ChatFields.model_validate(CHAT | fields))


@pytest.mark.parametrize(
    ("response_format", "structure"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_object", "schema": {}}, {"json_object": True}),
        ({"type": "json_object", "schema": True}, {"json_object": True}),
        ({"type": "json_object", "schema": {"const": 1}}, {"json": {"const": 1}}),
        ({"type": "json_schema", "schema": {}}, {"json": {}}),
        ({"type": "json_schema", "json_schema": {"schema": True}}, {"json": True}),
        ({"type": "json_schema", "json_schema": {"schema": {"const": 1}}}, {"json": {"const": 1}}),
    ],
)
def test_formats(response_format, structure):
    """Any schema is any JSON value, and `json_object` any object."""
    found = asked(response_format=response_format)
    assert found == (None if structure is None else ("response_format", structure))
    if found is not None:
        StructuredOutputs.of(found[1])


def test_options_of_structured_outputs():
    neutral = {"disable_fallback": True, "disable_additional_properties": False}
    compact = {"json": {"const": 1}, "disable_any_whitespace": True}
    name, structure = asked(structured_outputs=compact | neutral)
    assert (name, structure) == ("structured_outputs", compact)
    assert StructuredOutputs.of(structure).disable_any_whitespace
    for wrong in ({"disable_additional_properties": True}, {"whitespace_pattern": " "}):
        with pytest.raises(UserError, match=f"have no {next(iter(wrong))}"):
            StructuredOutputs.of(asked(structured_outputs={"json_object": True} | wrong)[1])


@pytest.mark.parametrize(
    "fields",
    [
        *({name: ""} for name in ("grammar", "ebnf", "regex", "guided_json", "json_schema")),
        {"guided_choice": [], "guided_json_object": False, "guided_grammar": ""},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "regex": "", "choice": [], "json_object": False}},
        {"structured_outputs": {"disable_any_whitespace": False, "whitespace_pattern": None}},
    ],
)
def test_empty_fields_ask_for_nothing(fields):
    assert asked(**fields) is None
    assert asked(**fields, guided_regex="a") == ("guided_regex", {"regex": "a"})


@pytest.mark.parametrize("kind", [ChatFields, CompletionFields])
def test_neutral_and_harmless_fields_are_accepted(kind):
    required = CHAT if kind is ChatFields else COMPLETION
    for name, values in NEUTRAL.items():
        for value in values if name not in kind.model_fields else ():
            kind.model_validate(required | {name: value})
    for name in HARMLESS:
        kind.model_validate(required | {name: 5})
    assert not HARMLESS & NEUTRAL.keys()


@pytest.mark.parametrize("name", NEUTRAL)
def test_other_values_are_refused_by_name(name):
    if name in ChatFields.model_fields:
        return
    for value in ("other", 2, 0.5, ["x"], {"x": 1}):
        with pytest.raises(ApiError, match=f"{name} is not supported by this server"):
            ChatFields.model_validate(CHAT | {name: value, "presence_penalty": 0.5})


@pytest.mark.parametrize("kind", [ChatFields, CompletionFields])
def test_numbers(kind):
    """1.0 is 1, and -1 no limit; an empty list of biases is none."""
    required = CHAT if kind is ChatFields else COMPLETION
    whole = {"max_tokens": 16, "top_k": 40, "seed": 1, "n": 2, "min_tokens": 3}
    text = json.dumps(required | {name: float(value) for name, value in whole.items()})
    found = kind.model_validate_json(text).model_dump(include=whole.keys())
    assert found == whole
    assert all(type(value) is int for value in found.values())
    for endless in (-1, -1.0):
        assert kind.model_validate(required | {"max_tokens": endless}).most_tokens is None
    assert kind.model_validate(required | {"logit_bias": []}).logit_bias == {}
    for wrong in ({"max_tokens": -2}, {"max_tokens": 1.5}, {"logit_bias": [1]}, {"n": True}):
        with pytest.raises(ValidationError):
            kind.model_validate(required | wrong)


def test_no_limit_by_other_names():
    """Completions have a limit by default, so that there it would change the text."""
    fields = ChatFields.model_validate(CHAT | {"max_completion_tokens": -1, "n_predict": -1})
    assert fields.most_tokens is None
    with pytest.raises(ValidationError):
        ChatFields.model_validate(CHAT | {"n_predict": 5})
    with pytest.raises(ApiError, match="n_predict is not supported"):
        CompletionFields.model_validate(COMPLETION | {"n_predict": -1})


def test_reach_of_penalties():
    """Without penalties it may be any."""
    for off in ({}, {"presence_penalty": 0.0, "frequency_penalty": None, "repeat_penalty": 1}):
        ChatFields.model_validate(CHAT | off | {"repeat_last_n": 64})
    for name in ("presence_penalty", "frequency_penalty"):
        ChatFields.model_validate(CHAT | {name: 0.5, "repeat_last_n": -1})
        with pytest.raises(ApiError, match="repeat_last_n is not supported"):
            ChatFields.model_validate(CHAT | {name: 0.5, "repeat_last_n": 64})


def test_truth_is_no_number():
    """Neither is 1 true: those who send such a value mean something else."""
    for name, value in (("repeat_penalty", True), ("mirostat", False), ("detokenize", 1)):
        with pytest.raises(ApiError, match=f"{name} is not supported by this server"):
            ChatFields.model_validate(CHAT | {name: value})
    ChatFields.model_validate(CHAT | {"repeat_penalty": 1.0, "mirostat": 0.0})
