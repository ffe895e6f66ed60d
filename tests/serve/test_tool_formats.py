"""How models write calls of tools: what is written is read again, whole or in any pieces."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_jax.serve.tools.formats import _BY_TEMPLATE, HERMES, LLAMA, format_of
from dart_jax.serve.tools.reader import ToolCallReader

NAMES = ("get_weather", "f.g-h")
FORMATS = [*dict.fromkeys(_BY_TEMPLATE.values())]

arguments = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
    max_size=3,
)
calls = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3)


def read(format, pieces, **options):
    """The text and the calls of an answer that comes in pieces."""
    reader = ToolCallReader(format, NAMES, **options)
    content, found = "", []
    for number, piece in enumerate([*pieces, ""]):
        reading = reader.push(piece, final=number == len(pieces))
        content += reading.content
        for part in reading.calls:
            if part.name is not None:
                assert part.index == len(found)
                assert part.id
                assert len(part.id) == 9
                assert part.id.isalnum()
                found.append([part.name, ""])
            found[part.index][1] += part.arguments
    assert reader.count >= len(found)
    return content, [tuple(call) for call in found]


def cut(text, places):
    """A text in pieces."""
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


places = st.lists(st.integers(0, 1000), max_size=8)


@pytest.mark.parametrize("format", FORMATS, ids=lambda each: each.begin + each.arguments)
@given(calls, places)
def test_written_calls_are_read(format, written, places):
    text = format.write(written)
    content, found = read(format, cut(text, places))
    assert content == ""
    assert [(name, json.loads(rest)) for name, rest in found] == written
    assert read(format, cut(text, places), parallel=False)[1] == found[:1]


@pytest.mark.parametrize("format", FORMATS, ids=lambda each: each.begin + each.arguments)
@given(st.text(st.sampled_from('ab {}[]"<>/\n,:') | st.characters()), places)
def test_other_text_stays_as_it_is(format, text, places):
    assert read(format, cut(text, places)) == (text, [])


STRANGE = [
    # Text, what is left of it, and calls.
    ('H. <tool_call>\n{"arguments": {"x": 1}, "name": "f"}', "H.", [("f", '{"x": 1}')]),
    ('<tool_call>[{"name": "f", "arguments": {}}]</tool_call> More.', " More.", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": {"x": ', "", [("f", '{"x": ')]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"function": {"name": "f", "arguments": "{}"}}', "", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call>a \n', "a \n", [("f", "{}")]),
    ("a <tool_call> is none", "a <tool_call> is none", []),
    ("<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": 1}', '<tool_call>{"name": "f", "arguments": 1}', []),
    ("<tool_call>", "<tool_call>", []),
    ("a < b <tool", "a < b <tool", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "found"), STRANGE)
def test_what_models_write(text, content, found):
    for pieces in ([text], list(text)):
        assert read(HERMES, pieces) == (content, found)


def test_text_after_a_call_follows_it():
    reader = ToolCallReader(HERMES, NAMES)
    reader.push('<tool_call>{"name": "f", "arguments": {"c": 1')
    call, text = reader.push("}}</tool_call>Done.", final=True).parts
    assert (call.arguments, text) == ("}", "Done.")


def test_an_answer_that_must_be_a_call_has_no_text():
    reader = ToolCallReader(HERMES, NAMES, must=True)
    assert not reader.push('<tool_call>{"name": ', final=True).parts
    assert not reader.complete


UNMARKED = [
    ('{"name": "get_weather", "parameters": {"a": 1}}', "", [("get_weather", '{"a": 1}')]),
    ('<|python_tag|>{"type": "x", "name": "f.g-h", "parameters": {}}', "", [("f.g-h", "{}")]),
    ('{"name": "nobody", "parameters": {"a": 1}}', None, []),
    ('{"answer": 42}', None, []),
    (' {"name"', None, []),
    ("Here: {", None, []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "found"), UNMARKED)
def test_calls_without_a_mark(text, content, found):
    for pieces in ([text], list(text)):
        assert read(LLAMA, pieces) == (text if content is None else content, found)


def test_the_chat_template_tells_the_format():
    for mark, format in _BY_TEMPLATE.items():
        assert format_of("{% if tools %}" + mark) == format
        assert format_of(mark) is None
    assert format_of("{% if tools %}<tool_call><function={{ name }}>") is None
    assert format_of("{% if tools %}") is None
