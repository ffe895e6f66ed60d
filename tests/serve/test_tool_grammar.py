"""Grammars of calls: what they allow is read again as calls of tools that may be called, with
arguments that follow their schemas."""

import functools
import json
import random
import re

import jsonschema
import numpy as np
import pytest
from grammar_texts import allowed
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schemas import SCHEMAS
from tokenizers import AddedToken
from tokenizers_made import byte_level

from dart_jax.errors import UserError
from dart_jax.grammar.matching import Grammars
from dart_jax.grammar.schemas import FORMATS as FORMATS_OF_TEXTS
from dart_jax.serve.body.fields import Function
from dart_jax.serve.tools.formats import _BY_TEMPLATE, GLM, QWEN_XML
from dart_jax.serve.tools.reader import divided
from dart_jax.serve.tools.request import Tools
from dart_jax.text.tokenizer import Tokenizer

FORMATS = [*dict.fromkeys(filter(None, _BY_TEMPLATE.values()))]
XML = [format for format in FORMATS if format.is_xml]
STEPS = 100


def title(format):
    return next(mark for mark, one in _BY_TEMPLATE.items() if one == format)


class Model:
    """Writes random texts under the grammar of some tools.

    Args:
      format: of calls.
      tokens: which of its marks are tokens: none, "some" of them, or all.
    """

    def __init__(self, format, tokens):
        marks = {"none": (), "some": (format.begin, format.end), "all": format.marks}[tokens]
        backend = byte_level()
        backend.add_special_tokens(["<end>"])
        # Models have both.
        special = tokens == "all"
        backend.add_tokens([AddedToken(x, special=special, normalized=False) for x in marks if x])
        self.format, self.tokenizer = format, Tokenizer(backend)
        self.end = backend.token_to_id("<end>")
        self.grammars = Grammars(self.tokenizer, self.tokenizer.vocab_size, (self.end,))
        self.marks = {mark: backend.token_to_id(mark) for mark in marks if mark}

    def tools(self, functions, *, all=(), must=True, parallel=True):
        described = [{"function": {"name": each.name}} for each in all or functions]
        return Tools(tuple(functions), described, self.format, must, parallel, self.marks)

    def write(self, tools, seed, words=()):
        """The tokens of a text, and whether it has ended; `words`: what it likes to write."""
        rng = random.Random(seed)
        matcher = self.grammars.start(self.grammars.check(tools.outputs(None)))
        format, tokens = self.format, []
        words = [*words, *format.marks, *'<>\n/"]}1-', '["', '", "', "null", "[", "12"]
        spelled = [[self.tokenizer.encode(x, False)[0] for x in word] for word in words]
        words = [*spelled, *(self.tokenizer.encode(word, False) for word in words)]
        every = np.arange(self.tokenizer.vocab_size)
        while len(tokens) < STEPS:
            choices = np.flatnonzero(matcher.allows(every)).tolist()
            assert choices, self.tokenizer.decode(tokens, False)
            if choices == [self.end] or (self.end in choices and rng.random() < 0.2):
                return tokens, True
            liked = [word for word in words if word[0] in choices] if rng.random() < 0.5 else []
            others = [token for token in choices if token != self.end] or choices
            word = rng.choice(liked) if liked else [rng.choice(others)]
            for token in word[: rng.choice((1, len(word)))]:
                if not matcher.allows(np.array([token])):
                    break
                matcher.advance([token])
                assert matcher.error is None
                tokens.append(token)
        return tokens, False

    def read(self, tools, tokens, ended):
        """The content of a text and its calls, without the last one if that may be cut off."""
        reader = tools.reader()
        parts = reader.push(self.tokenizer.decode(tokens, False), final=True)
        content, pieces = divided(parts)
        calls = []
        for piece in pieces:
            if piece.name is not None:
                calls.append([piece.name, ""])
            calls[-1][1] += piece.arguments
        if not ended:
            calls = calls[:-1]
        assert not ended or reader.complete == bool(calls)
        return content, [(name, json.loads(rest)) for name, rest in calls]


@pytest.fixture(scope="module")
def model():
    return functools.cache(Model)


def check(functions, calls):
    schemas = {each.name: each.parameters for each in functions}
    formats = jsonschema.FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])
    for name, found in calls:
        jsonschema.validate(found, schemas[name], format_checker=formats)


PARTS = SCHEMAS | st.sampled_from(
    [
        True,
        {"description": "Anything."},
        {"type": "string"},
        {"type": ["string", "null"]},
        {"type": ["string", "number"], "maxLength": 3},
        {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]},
        {"oneOf": [{"type": "string", "minLength": 2}, {"type": "array", "maxItems": 1}]},
        {"allOf": [{"pattern": "a"}, {"type": "string", "pattern": "^b|c$"}]},
        {"enum": ["a", "</parameter>", "1", 1, None, ["a"]]},
        {"$ref": "#/$defs/text"},
        {"type": "array", "items": {"$ref": "#/$defs/text"}, "maxItems": 2},
        *({"type": "string", "format": name} for name in sorted(FORMATS_OF_TEXTS)),
    ]
)
DEFINITIONS = {"text": {"type": ["string", "boolean"], "maxLength": 4}}


@st.composite
def objects(draw):
    names = st.sampled_from(["a", "b", "two words", "žluť", "x.y"])
    properties = draw(st.dictionaries(names, PARTS, max_size=3))
    schema = {"type": "object", "properties": properties, "$defs": DEFINITIONS}
    schema["required"] = [name for name in properties if draw(st.booleans())]
    if draw(st.integers(0, 3)) == 0:
        schema["additionalProperties"] = draw(PARTS)
    return schema


TOKENS = st.sampled_from(["none", "some", "all"])


@pytest.mark.parametrize("format", XML, ids=title)
@settings(max_examples=25)
@given(TOKENS, objects(), objects(), st.booleans(), st.integers(0, 2**32))
def test_calls_that_are_required(model, format, tokens, one, other, parallel, seed):
    model = model(format, tokens)
    functions = [Function(name="f", parameters=one), Function(name="g.h-i", parameters=other)]
    tools = model.tools(functions, parallel=parallel)
    tokens, ended = model.write(tools, seed)
    content, calls = model.read(tools, tokens, ended)
    assert content == ""
    assert len(calls) > 0 or not ended
    assert len(calls) < 2 or tools.parallel
    check(functions, calls)


STRICT = {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"enum": ["x", "yy"]}}}
CALLS = [("nobody", {"a": "1"}), ("f", {"s": "z"}), ("f", {"a": 1})]


@pytest.mark.parametrize("format", FORMATS, ids=title)
@settings(max_examples=15)
@given(TOKENS, st.integers(0, 2**32), st.booleans(), st.booleans())
def test_other_calls_cannot_be_written(model, format, tokens, seed, strict, parallel):
    """Nor, of a strict function, with other arguments than it has."""
    model = model(format, tokens)
    schema = STRICT if strict else {"type": "object"}
    f = Function(name="f", parameters=STRICT, strict=strict)
    every = [f, Function(name="nobody")]
    tools = model.tools([f], all=every, must=False, parallel=parallel)
    liked = [*map(format.head, ("f", "nobody")), format.body({"a": 1}), format.body({"s": "z"})]
    liked += [format.write([call]) for call in CALLS]
    _, calls = model.read(tools, *model.write(tools, seed, liked))
    check([Function(name="f", parameters=schema)], calls)


def allowed_calls(model, parameters, calls):
    """Which of some calls a model may write."""
    tools = model.tools([Function(name="f", parameters=parameters)], parallel=False)
    source, found = model.grammars.check(tools.outputs(None)), []
    for arguments in calls:
        matcher = model.grammars.start(source)
        matcher.advance(model.tokenizer.encode(model.format.write([("f", arguments)])))
        if matcher.error is None and model.end in allowed(matcher):
            found.append(arguments)
    return found


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", "1", "null", "\n", "<p>", "</para\n"], ["a</parameter>b"]),
        ({"enum": ["a", "b\nc"]}, ["a", "b\nc"], ["b", "ab", '"a"']),
        ({"const": "a"}, ["a"], ["b"]),
        ({"type": "string", "pattern": "b/"}, ["b/", "ab/c"], ["b"]),
        ({"type": "string", "pattern": "^b|[|)]$"}, ["bx", "x|", ")"], ["ab", "|x"]),
        ({"type": "string", "pattern": "^(x|\\$)$"}, ["x", "$"], ["xx", "x$"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["žž", "\n\n\n"], ["ž", "abcd"]),
        ({"type": "string", "format": "date"}, ["2024-02-28"], ["2024-13-01", "x"]),
        ({"type": "string", "format": "path"}, ["x"], []),
        ({"type": ["string", "null"]}, ["null", "nul", "1", "[a"], []),
        ({"type": ["string", "integer"], "maxLength": 2}, ["1", "123", "ab"], ["abc", "1-2"]),
        ({"type": ["string", "integer"], "maximum": 3}, ["3", "a"], ["4", "2024-01-01"]),
        ({"type": ["string", "array"]}, ["[1]", "a", "{"], ["[a"]),
        ({"type": "boolean"}, ["true"], ["True", "1"]),
        ({"type": "array", "items": {"type": "integer"}}, ["[1, 2]", "[]"], ["[a]", "1"]),
        ({"oneOf": [{"const": "a"}, {"type": "integer"}]}, ["a", "1"], ["b"]),
        (True, ["a", "1", "null", "[]", '{"a": 1}', "2024-01-01"], ["[a"]),
    ],
)
def test_values(model, schema, good, bad):
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    calls = [{"v": value} for value in (*good, *bad)]
    assert allowed_calls(model(QWEN_XML, "none"), parameters, calls) == calls[: len(good)]


@pytest.mark.parametrize(
    "parameters",
    [
        {"required": ["v"], "properties": {"w": {"type": "integer"}}},
        {"required": ["v"], "properties": {"v": {"$ref": "#/$defs/A[b]"}}},
        {"required": ["v"], "properties": {"v": {"$ref": "#/$defs/l%5Bb%5D"}}},
    ],
)
def test_names_of_parameters(model, parameters):
    """One that must be there may be without a description."""
    named = {"A[b]": {"type": ["string", "array"]}, "l[b]": {"type": "array", "items": {}}}
    parameters = {"type": "object", "$defs": named, **parameters}
    calls = [{"v": "[1]"}, {}, {"v": "[1]", "x": "1"}]
    assert allowed_calls(model(QWEN_XML, "none"), parameters, calls) == calls[:1]


def test_order_and_presence(model):
    properties = {name: {"type": "integer"} for name in "abc"}
    parameters = {"type": "object", "properties": properties, "required": ["b"]}
    names = ("b", "ab", "abc", "bc", "", "a", "ba", "bd")
    calls = [dict.fromkeys(each, 1) for each in names]
    assert allowed_calls(model(GLM, "some"), parameters, calls) == calls[:4]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"properties": {"a>b": {}}}, "the name 'a>b'"),
        ({"properties": {" a": {}}}, "the name ' a'"),
        ({"properties": {"a": False}, "required": ["a"]}, "the parameter 'a'"),
        ({"required": ["a"], "additionalProperties": False}, "the parameter 'a'"),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"properties": {"a": {"not": {"const": "b"}}}}, "not"),
        ({"properties": {"a": {"oneOf": [{"pattern": "a"}, {"type": "string"}]}}}, "oneOf"),
        ({"properties": {"a": {"type": "string", "maxLength": "x"}}}, "length"),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "look-around"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "#/$defs/none"),
        ({"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}, "'#'"),
        ({"properties": {"a": {"$ref": "#/$defs/0"}},
          "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(3000)}}, "refer"),
    ],
)  # fmt: skip
def test_what_calls_cannot_be_held_to(model, parameters, message):
    model = model(QWEN_XML, "none")
    tools = model.tools([Function(name="f", parameters=parameters)])
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        model.grammars.check(tools.outputs(None))
    assert "\n" not in str(caught.value)
