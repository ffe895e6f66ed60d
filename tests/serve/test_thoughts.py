"""Models that think before they answer: thoughts beside the content, whole and streamed, in chats
and responses; structures and calls after them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_target import write_scripted_target
from serve_process import server

from dart_jax.text.thoughts import ThoughtReader

TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if tools %}{{ tools | tojson }}<tool_call>{% endif -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif -%}
{%- if reasoning_effort == "high" %}<think>{% endif -%}
{% endif -%}"""
THOUGHT = 'Is it <tool_call>{"name": "f", "arguments": {}}</tool_call>?\n Yes'
PIECES = ("<think>", "\nIs it ", THOUGHT[6:-3], "Yes", "</think>", "\n\nIt is", " Paris")
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ASK = [{"role": "user", "content": "hi"}]
ANSWER = "It is Paris"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of a model that thinks; its marks are special tokens."""
    marks = ("<think>", "</think>")
    target = write_scripted_target(tmp_path_factory.mktemp("t") / "t", PIECES, TEMPLATE, marks)
    quick = ("--slots", "4", "--max-length", "512", "--warmup", "none")
    options = ("--target", str(target), "--served-model-name", "m", *quick)
    with server(*options) as running:
        yield running


def chat(served, messages=ASK, stream=False, stream_options=None, **extra):
    options = {"model": "m", "messages": messages, "temperature": 0, "extra_body": extra}
    options |= {"stream": True, "stream_options": stream_options} if stream else {}
    return served.client().chat.completions.create(**options)


@pytest.mark.parametrize("extra", [{}, {"reasoning_effort": "high"}, {"tools": TOOLS}])
def test_thoughts_beside_the_content(served, extra):
    """Also where the prompt opens them; a call among them is none."""
    answer = chat(served, **extra)
    [choice] = answer.choices
    assert choice.message.reasoning_content == THOUGHT
    assert choice.message.content == ANSWER
    assert not choice.message.tool_calls
    assert choice.finish_reason == "stop"
    thoughts, total = answer.usage.completion_tokens_details, answer.usage.completion_tokens
    assert thoughts.reasoning_tokens == total - 3
    *chunks, last = chat(served, stream=True, stream_options={"include_usage": True}, **extra)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == THOUGHT
    assert "".join(delta.content or "" for delta in deltas) == ANSWER
    assert last.usage.completion_tokens == total
    assert last.usage.completion_tokens_details == answer.usage.completion_tokens_details


def test_thoughts_where_the_client_wants_them(served):
    together = "<think>\nIs it " + THOUGHT[6:] + "</think>\n\n" + ANSWER
    for extra in ({"separate_reasoning": False}, {"reasoning_format": "none"}):
        for tools in ({}, {"tools": TOOLS}):  # a call among thoughts is none
            answer = chat(served, **extra, **tools)
            message = answer.choices[0].message
            assert message.content == together
            assert not message.tool_calls
            assert not hasattr(message, "reasoning_content")
            assert answer.usage.completion_tokens_details.reasoning_tokens == 5
    for extra in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        message = chat(served, **extra).choices[0].message
        assert (message.content, message.reasoning_content) == (ANSWER, None)


def test_thoughts_that_are_cut_off(served):
    answer = chat(served, max_tokens=2)
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("", "Is it")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2


@pytest.mark.parametrize("extra", [{}, {"reasoning_effort": "high"}, {"n": 2}])
def test_a_structure_after_thoughts(served, extra):
    parts = {"a": {"enum": [1, 2]}}
    schema = {"type": "object", "properties": parts, "required": ["a"]}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for choice in chat(served, response_format=format, **extra).choices:
        assert choice.message.reasoning_content == THOUGHT
        assert json.loads(choice.message.content)["a"] in (1, 2)


def test_the_effort_reaches_the_template(served):
    """Also beside a structure, by several names."""
    format, low = {"type": "json_object"}, chat(served, reasoning_effort="low")
    off = {"enable_thinking": False}
    for extra in ({"reasoning_effort": "none"}, off, {"chat_template_kwargs": off}):
        answer = chat(served, response_format=format, max_tokens=20, **extra)
        assert answer.choices[0].message.content.startswith("{")
        assert answer.choices[0].message.reasoning_content is None
        assert answer.usage.prompt_tokens == low.usage.prompt_tokens + 2


def test_responses(served):
    """Thoughts are an item before the message, which the server takes back."""
    responses = served.client().responses
    options = {"model": "m", "temperature": 0}
    whole = responses.create(input="hi", reasoning={"effort": "low"}, **options)
    thoughts, _ = whole.output
    assert [part.text for part in thoughts.content] == [THOUGHT]
    assert (thoughts.type, thoughts.status, thoughts.summary) == ("reasoning", "completed", [])
    assert whole.output_text == ANSWER
    assert whole.usage.output_tokens_details.reasoning_tokens == 5
    assert whole.reasoning.effort == "low"
    events = list(responses.create(input="hi", stream=True, **options))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == THOUGHT
    last = events[-1].response
    assert [item.type for item in last.output] == ["reasoning", "message"]
    assert last.output[0].content == thoughts.content
    names = [event.type for event in events]
    done = ["reasoning_text.done", "content_part.done", "output_item.done", "output_item.added"]
    at = names.index("response.reasoning_text.done")
    assert names[at : at + 4] == [f"response.{name}" for name in done]
    turns = [{"role": "user", "content": "hi"}, *whole.output, {"role": "user", "content": "more"}]
    again = responses.create(input=[_plain(turn) for turn in turns], **options)
    shown = [*ASK, {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}]
    expected = chat(served, [*shown, {"role": "user", "content": "more"}])
    assert again.usage.input_tokens == expected.usage.prompt_tokens


def _plain(item):
    return item if isinstance(item, dict) else item.model_dump(exclude_none=True)


FRAGMENTS = st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", " ", "\n", "a", "<", ""])


@given(st.lists(FRAGMENTS, max_size=12), st.booleans(), st.booleans(), st.booleans())
def test_pieces_are_the_whole(fragments, opened, exact, raw):
    text, options = "".join(fragments), {"exact": exact, "raw": raw}
    whole = ThoughtReader(opened, **options).push(text, final=True)
    reader, pieces = ThoughtReader(opened, **options), []
    for fragment in fragments:
        for character in fragment:
            pieces.append(reader.push(character))
    pieces.append(reader.push("", final=True))
    assert tuple(map("".join, zip(*pieces, strict=True))) == whole
    thoughts, rest = whole
    if raw:
        assert thoughts + rest == text
        return
    assert thoughts == thoughts.strip()
    thinks = opened or text.lstrip().startswith("<think>")
    if not thinks:
        assert whole == ("", text)
    elif "</think>" in text:
        own, _, after = text.partition("</think>")
        assert thoughts == own.lstrip().removeprefix("<think>").strip()
        assert rest == (after if exact else after.lstrip())
    else:
        assert rest == ""
