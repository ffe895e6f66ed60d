"""How models write calls of tools: what is written is read again, whole or in any pieces."""

import itertools
import json
import string

import chat_templates
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers_made import byte_level

from dart_jax.serve.tools.formats import (
    _BY_TEMPLATE,
    GLM,
    HERMES,
    LLAMA,
    QWEN_XML,
    format_of,
)
from dart_jax.serve.tools.parameters import Parameters
from dart_jax.serve.tools.reader import CallReader, divided
from dart_jax.text.tokenizer import Tokenizer

NAMES = ("get_weather", "f.g-h", "f")
FORMATS = [*dict.fromkeys(filter(None, _BY_TEMPLATE.values()))]
MISTRAL, MISTRAL_LIST = _BY_TEMPLATE["[ARGS]"], _BY_TEMPLATE["[TOOL_CALLS]"]
PHI = _BY_TEMPLATE["<|tool_call|>"]
MARKS = [mark for format in FORMATS for mark in format.marks]

texts = st.text() | st.sampled_from(MARKS).map(lambda mark: f"\n{mark}\n")
arguments = st.dictionaries(
    st.text(st.sampled_from(string.ascii_letters + "_.ž")).filter(bool),
    st.recursive(
        st.none() | st.booleans() | st.integers() | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
    max_size=3,
)
calls = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3)
places = st.lists(st.integers(0, 1000), max_size=8)


def reader_of(format, schemas=None, **options):
    """A reader for tools whose parameters have these schemas."""
    parameters = Parameters({"properties": schemas or {}, "additionalProperties": True})
    return CallReader(format, dict.fromkeys(NAMES, parameters), **options)


def read(format, pieces, schemas=None, **options):
    """The text and the calls of an answer that comes in pieces."""
    reader = reader_of(format, schemas, **options)
    content, found = "", []
    for number, piece in enumerate([*pieces, ""]):
        text, more = divided(reader.push(piece, final=number == len(pieces)))
        content += text
        for part in more:
            if part.name is not None:
                assert part.index == len(found)
                assert part.id
                assert len(part.id) == 9
                assert part.id.isalnum()
                found.append([part.name, ""])
            found[part.index][1] += part.arguments
    assert reader.count >= len(found)
    if format.is_xml and reader.complete:
        assert all(isinstance(json.loads(rest), dict) for _, rest in found)
    if options.get("must"):
        assert not content
    return content, [tuple(call) for call in found]


def cut(text, places):
    """A text in pieces."""
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def title(format):
    return next(mark for mark, one in _BY_TEMPLATE.items() if one == format)


@pytest.mark.parametrize("format", FORMATS, ids=title)
@given(calls, places)
def test_written_calls_are_read(format, written, places):
    if format.is_xml:  # no text may have the marks that end it
        values = [value for _, each in written for value in each.values()]
        assume(not any(mark in x for mark in format.ends for x in values if isinstance(x, str)))
        one = {name: value for _, each in written for name, value in each.items()}
        written = [(name, {key: one[key] for key in each}) for name, each in written]
        schemas = {key: {"enum": [value]} for key, value in one.items()}
    else:
        schemas = None
    text = format.write(written)
    content, found = read(format, cut(text, places), schemas)
    assert content == ""
    assert [(name, json.loads(rest)) for name, rest in found] == written
    assert read(format, cut(text, places), schemas, parallel=False)[1] == found[:1]


@pytest.mark.parametrize("format", FORMATS, ids=title)
@given(st.text(st.sampled_from('ab {}[]"<>/\n,:') | st.characters()), places)
def test_other_text_stays_as_it_is(format, text, places):
    assert read(format, cut(text, places)) == (text, [])


COMMON = [
    *' \n<>[]{},;"\\', "text ", "f", "nobody", "null", "3", "é", '["a', '"]', "{}", '{"x": 1}',
    '{"name": "f", "arguments": {', '{"name": "f", "parameters": {"s": "}"}}', '"name": ',
    '{"arguments": {"x": 1}, "name": "f"}', "[ARGS]", "f[CALL_ID]12[ARGS]{", "<|python_tag|>",
]  # fmt: skip
SCHEMAS = {"s": {"type": "string"}, "n": {"type": "integer"}, "a": {"type": "array"}, "x": {}}


def fragments(format):
    """Pieces of calls and of what looks like calls."""
    pieces = [*COMMON, *format.marks, format.begin + format.space]
    pieces += [format.head("f"), format.head("nobody"), format.write([("f", {"s": "v"})])]
    if format.is_xml:
        pieces += [format.body({"s": "v"}), format.body({"n": 3, "a": [format.value_end]})]
        pieces += [format.key_begin + name + format.opening for name in SCHEMAS]
    return st.lists(st.sampled_from(pieces), max_size=14).map("".join)


@pytest.mark.parametrize("format", FORMATS, ids=title)
@given(st.data(), places, st.booleans(), st.booleans())
def test_pieces_are_read_as_the_whole(format, data, places, parallel, must):
    """And nothing is lost if there is no call."""
    text = data.draw(fragments(format))
    if data.draw(st.booleans()):
        text = format.write([("f", {"s": text, "n": 1}), ("nobody", {})]) + text
    text = text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text
    options = {"parallel": parallel, "must": must}
    whole = read(format, [text], SCHEMAS, **options)
    assert read(format, list(text), SCHEMAS, **options) == whole
    assert read(format, cut(text, places), SCHEMAS, **options) == whole
    if not whole[1]:
        assert whole[0] == ("" if must else text)


BARE = "<function=f><parameter=s>v</parameter></function>"
CALL, OTHER = '{"name": "f", "arguments": {}}', '{"arguments": {"x": 1}, "name": "f"}'
SEVERAL = [("f", "{}"), ("f", '{"x": 1}'), ("f", "{}")]
WRITTEN = [
    # Text, what is left of it, and calls.
    (HERMES, 'H. <tool_call>\n{"arguments": {"x": 1}, "name": "f"}', "H.", [("f", '{"x": 1}')]),
    (HERMES, '<tool_call>[{"name": "f", "arguments": {}}]</tool_call> M.', " M.", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": ', "", [("f", '{"x": ')]),
    (HERMES, '<tool_call>{"function": {"name": "f", "arguments": "{}"}}', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>\n', "", [("f", "{}")]),
    (HERMES, "a <tool_call> is none", "a <tool_call> is none", []),
    (HERMES, "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    (HERMES, '<tool_call>{"name": "f", "arguments": 1}', None, []),
    (HERMES, "<tool_call>\n<tool_call> a", "<tool_call>\n<tool_call> a", []),
    # Several with one mark, divided by spaces, or in another order.
    (HERMES, f"<tool_call>\n{CALL}\n{OTHER}\n{CALL}\n</tool_call> M.", " M.", SEVERAL),
    (HERMES, f"<tool_call>{CALL}\n{OTHER[:-1]}", f"\n{OTHER[:-1]}", SEVERAL[:1]),
    (PHI, f"<|tool_call|>[{CALL}, {OTHER}, {CALL}]<|/tool_call|>", "", SEVERAL),
    (MISTRAL_LIST, f"[TOOL_CALLS][{CALL}, {OTHER}, {CALL}] {CALL}", f" {CALL}", SEVERAL),
    (MISTRAL_LIST, f'[TOOL_CALLS][{CALL}, {{"x": 1}}]', ', {"x": 1}]', SEVERAL[:1]),
    (LLAMA, f"{CALL}; {OTHER}\n{CALL}", "", SEVERAL),
    # Where nothing ends a call, only a mark, or a list, begins a further one.
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]1a[ARGS]{"x": 1}', "", [("f", '{"x": 1}')]),
    (MISTRAL, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}", "", [("f", "{}"), ("f", "{}")]),
    (MISTRAL, "[TOOL_CALLS]f[ARGS]{} g{}", " g{}", [("f", "{}")]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{}, {"name": "f", "arguments": {}}',
     ', {"name": "f", "arguments": {}}', [("f", "{}")]),
    (MISTRAL_LIST, '[TOOL_CALLS][{"name": "f", "arguments": {}}] {"name": "f"}', ' {"name": "f"}',
     [("f", "{}")]),
    # Where nothing marks a call, it is the whole answer.
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (LLAMA, '<|python_tag|>{"type": "x", "name": "f.g-h", "parameters": {}}', "",
     [("f.g-h", "{}")]),
    (LLAMA, '{"name": "nobody", "parameters": {"a": 1}}', None, []),
    (LLAMA, '{"answer": 42}', None, []),
    (LLAMA, "Here: {", None, []),
    # As the families' models write XML, with line breaks or without.
    (
        QWEN_XML,
        "Hi.\n<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n<parameter=n>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
        "Hi.",
        [("f", '{"s": "1", "n": 2}')],
    ),
    (QWEN_XML, f"<tool_call>{BARE}</tool_call>", "", [("f", '{"s": "v"}')]),
    (GLM, "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>", "",
     [("f", '{"n": 1}')]),
    (GLM, "<tool_call>f</tool_call>\n<tool_call>f\n</tool_call>", "", [("f", "{}"), ("f", "{}")]),
    # Several lines and spaces are kept.
    (QWEN_XML, BARE.replace("v", "\n\n a \n\n"), "", [("f", '{"s": "\\n a \\n"}')]),
    (GLM, "<tool_call>f<arg_key> s </arg_key><arg_value>\na </arg_value></tool_call>", "",
     [("f", '{"s": "\\na "}')]),
    # The first mark is missing, which only tools may do, or the last one of a value or a call.
    (QWEN_XML, f"Hi. {BARE}</tool_call> Bye.", "Hi. Bye.", [("f", '{"s": "v"}')]),
    (QWEN_XML, "a <function=nobody></function>", "a <function=nobody></function>", []),
    (QWEN_XML, "<tool_call><function=nobody></function></tool_call>", "", [("nobody", "{}")]),
    (QWEN_XML, "<function=f><parameter=s>v<parameter=n>1</function>", "",
     [("f", '{"s": "v", "n": 1}')]),
    (QWEN_XML, f"<tool_call>{BARE[:-11]}\n<tool_call>{BARE}", "", [("f", '{"s": "v"}')] * 2),
    (GLM, "<tool_call>f<arg_key>s</arg_key><arg_value>v</tool_call>.", ".", [("f", '{"s": "v"}')]),
    # What is no part of a call, or the second value of a parameter.
    (QWEN_XML, BARE.replace("</f", "<parameter=s>w</parameter>?</f"), "", [("f", '{"s": "v"}')]),
    (QWEN_XML, "<tool_call>\n</tool_call>", "<tool_call>\n</tool_call>", []),
    (GLM, "A <tool_call> is none.", "A <tool_call> is none.", []),
    # Cut off.
    (QWEN_XML, "<function=f", "<function=f", []),
    (QWEN_XML, "<function=f><parameter=s>\nab\n</para", "", [("f", '{"s": "ab')]),
    (QWEN_XML, "<function=f><parameter=s>a</parameter><parameter=n>1", "", [("f", '{"s": "a"')]),
    # JSON may have marks in its strings.
    (QWEN_XML, BARE.replace("=s>v", '=a>["</parameter>"]'), "", [("f", '{"a": ["</parameter>"]}')]),
    (QWEN_XML, BARE.replace("=s>v", '=a>["'), "", [("f", '{"a": "[\\""}')]),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "content", "found"), WRITTEN)
def test_what_models_write(format, text, content, found):
    for pieces in ([text], list(text)):
        assert read(format, pieces, SCHEMAS) == (text if content is None else content, found)


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "string"}, {"1": "1", "null": "null", '"a"': '"a"', "[": "[", "": ""}),
        ({"type": "integer"}, {" -2\n": -2, "1.5": "1.5", "x": "x", "true": "true"}),
        ({"type": "number"}, {"1": 1, "1.5": 1.5, "NaN": "NaN", "1 2": "1 2", "null": "null"}),
        ({"type": "boolean"}, {"true": True, "False": False, "1": "1", "yes": "yes"}),
        ({"type": "array"}, {"[1, 2]": [1, 2], "[1": "[1", "{}": "{}", "['a']": "['a']"}),
        ({"type": "object"}, {'{"a": [1]}': {"a": [1]}, "[]": "[]", "{'a': 1}": "{'a': 1}"}),
        ({"type": "string", "nullable": True}, {"None": None, "1": "1", '"a"': '"a"'}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"[1]": [1], "1": "1"}),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, {"1": 1}),
        ({"enum": ["1", True]}, {"1": "1", "true": True, "false": "false"}),
        ({"$ref": "#/properties/other"}, {"1": 1}),
        ({"$ref": "#/properties/value"}, {"1": 1}),
        (True, {"1": 1, "[1]": [1], "null": None, "a": "a", '"a"': '"a"'}),
    ],
)
def test_values_have_their_types(schema, values):
    schemas = {"value": schema, "other": {"type": "integer"}}
    for text, value in values.items():
        written = QWEN_XML.write([("f", {"value": text})])
        [(_, found)] = read(QWEN_XML, [written], schemas)[1]
        found = json.loads(found)["value"]
        assert (found, type(found)) == (value, type(value))


def test_answers_are_passed_on_while_they_are_written():
    reader = reader_of(HERMES)
    reader.push('<tool_call>{"name": "f", "arguments": {"c": 1')
    call, text = reader.push("}}</tool_call>Done.", final=True)
    assert (call.arguments, text) == ("}", "Done.")
    reader = reader_of(QWEN_XML, SCHEMAS)
    reader.push("<function=f>\n<parameter=s>\n")
    [piece] = reader.push('first "line"\nsecond')
    assert piece.arguments == 'first \\"line\\"\\nsecond'
    assert not reader.complete


def test_the_chat_template_tells_the_format():
    for mark, format in _BY_TEMPLATE.items():
        assert format_of("{% if tools %}" + mark) == format
        assert format_of(mark) is None
    assert format_of("{% if tools %}<tool_call><function={{ name }}>") is None
    assert format_of("{% if tools %}") is None


@pytest.mark.parametrize(
    ("template", "format"), [(chat_templates.QWEN3_CODER, QWEN_XML), (chat_templates.GLM45, GLM)]
)
def test_templates_write_calls_as_models_do(template, format, tmp_path):
    assert format_of(template) == format
    calls = [("f", {"s": "a\nb", "n": 1, "a": [{"x": "ž"}]}), ("get_weather", {})]
    functions = [{"function": {"name": name, "arguments": each}} for name, each in calls]
    message = {"role": "assistant", "content": "", "tool_calls": functions}
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    text = Tokenizer.load(tmp_path).render_chat([{"role": "user", "content": "x"}, message])
    assert format.write(calls) in text
