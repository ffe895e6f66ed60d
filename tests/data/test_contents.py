"""Contents of records: every field is read, refused by name, or named in a warning."""

import json
import re

import pytest
from refusals import report

from dart_jax.data.contents import Completion, Text, Tokens, parse
from dart_jax.data.messages import Chat

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
CALL = {"name": "f", "arguments": {"x": 1}}


@pytest.mark.parametrize(
    ("record", "content"),
    [
        # What stands beside a chat.
        ({"conversations": SHAREGPT, "system": "s"}, Chat([SYSTEM, USER, ANSWER])),
        ({"messages": [USER, ANSWER], "system": " "}, Chat([USER, ANSWER])),
        ({"question": "a", "response": "b", "system_prompt": "s"}, Chat([SYSTEM, USER, ANSWER])),
        ({"messages": [USER, ANSWER], "tools": TOOLS}, Chat([USER, ANSWER], TOOLS)),
        ({"conversations": SHAREGPT, "tools": json.dumps(TOOLS)}, Chat([USER, ANSWER], TOOLS)),
        ({"messages": [USER, ANSWER], "tools": "[]"}, Chat([USER, ANSWER])),
        # What is not to be learned.
        ({"messages": [USER, ANSWER | {"train": False}]}, Chat([USER, ANSWER], None, (1,))),
        (
            {"messages": [USER | {"weight": 0.0}, ANSWER | {"weight": 1.0}, USER]},
            Chat([USER, ANSWER, USER]),
        ),
        (
            {"conversations": [*SHAREGPT, SHAREGPT[1] | {"loss": False}], "system": "s"},
            Chat([SYSTEM, USER, ANSWER, ANSWER], None, (3,)),
        ),
        (
            {"prompt": [USER, ANSWER, USER], "completion": [ANSWER]},
            Chat([USER, ANSWER, USER, ANSWER], None, (1,)),
        ),
        ({"prompt": [USER], "completion": "b"}, Chat([USER, ANSWER])),
        ({"prompt": '["a"]', "completion": "[1]"}, Completion('["a"]', "[1]")),
        # Spellings of messages.
        ([USER, ANSWER], Chat([USER, ANSWER])),
        ({"messages": json.dumps([USER, ANSWER])}, Chat([USER, ANSWER])),
        ({"messages": [{"from": "User", "content": "a"}]}, Chat([USER])),
        ({"messages": [{"role": "user", "text": "a"}]}, Chat([USER])),
        (
            {"conversations": [{"from": "observation", "value": "4"}]},
            Chat([{"role": "tool", "content": "4"}]),
        ),
        ({"messages": [USER, ANSWER | {"tool_calls": []}]}, Chat([USER, ANSWER])),
        (
            {"messages": [USER, ANSWER | {"reasoning_content": "hm\ud800"}]},
            Chat([USER, ANSWER | {"reasoning_content": "hm?"}]),
        ),
        # Other forms.
        ({"conversation": [USER, ANSWER], "prompt": "a", "id": 3}, Chat([USER, ANSWER])),
        ({"id": "0", "data": ["a", "b", "a"]}, Chat([USER, ANSWER, USER])),
        ({"instruction": "a", "input": "", "output": "b", "response": "c"}, Chat([USER, ANSWER])),
        ({"messages": [USER | {"content": [{"type": "text", "text": "a"}]}]}, Chat([USER])),
        ({"tokens": [1, 2, 3]}, Tokens([1, 2, 3], 0)),
        ({"text": "a", "data": "b", "messages": None}, Text("a")),
        ("a\ud800", Text("a?")),
        (
            {"instruction": "a", "context": "x", "response": "b"},
            Chat([USER | {"content": "a\n\nx"}, ANSWER]),
        ),
        ({"text": "t", "tokens": 12, "images": ["x"]}, Text("t")),
        ({"text": None}, Text("")),
        ({"tokens": [1, 2], "prompt_length": 1, "text": "t"}, Tokens([1, 2], 1)),
        ({"messages": [USER, ANSWER], "chosen": [USER, ANSWER]}, Chat([USER, ANSWER])),
        ({"messages": [USER, ANSWER], "label": True}, Chat([USER, ANSWER])),
        ({"prompt": [USER], "ability": "math", "reward_model": {"style": "rule"}}, Chat([USER])),
    ],
)
def test_what_is_read(record, content):
    assert parse(record) == content


CHAT = {"messages": [USER, ANSWER]}


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ([1], "a record must be an object, not an array"),
        ({"text": 1}, "`text` must be a string, not 1"),
        ({"messages": []}, "`messages` must be a list of messages, not empty"),
        ({"messages": [{"role": "user"}]}, "message 1 has no text as its content"),
        ({"messages": [{"role": "king", "content": ""}]}, "message 1 has the unknown role 'king'"),
        ({"messages": [1]}, "message 1 must be an object, not 1"),
        ({"tokens": [1, True]}, "must be an array of ids"),
        ({"tokens": [1], "prompt_length": 2}, r"must be in 0\.\.1"),
        ({"messages": [SYSTEM, USER], "system": "t"}, "`system` and the first message are diff"),
        (CHAT | {"system": ["s"]}, "`system` must be a string, not an array"),
        (CHAT | {"tools": "f, g"}, "`tools` must be a list of objects, not a string"),
        (CHAT | {"functions": [{"name": "f"}]}, "`functions` is not supported; write them as `too"),
        (CHAT | {"images": ["a.png"]}, "`images` is not supported; only text is read"),
        (CHAT | {"chat_template_kwargs": {"x": 1}}, "leave them out; options of the template"),
        (CHAT | {"weight": 0.5}, r"`weight` must be 1, not 0\.5"),
        (CHAT | {"loss_mask": [0, 1]}, "`loss_mask` is not supported"),
        ({"tokens": [1, 2], "labels": [-100, 2]}, "`labels` is not supported"),
        (CHAT | {"history": [["a", "b"]]}, "`history` is not supported; write it as `messages`"),
        (
            {"prompt": "a", "completion": "b", "system": "s"},
            "`system` beside `prompt` needs a chat",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "rename `chosen`, to `messages` where"),
        (CHAT | {"label": False}, "`label` says that the answer is not wanted"),
        ({"question": "a", "context": "c", "answer": "b"}, "`context` beside `question` is not re"),
        ({"dialog": [USER, ANSWER]}, "`dialog` holds messages; write the whole chat"),
        ({"messages": {"role": ["user"]}}, "must be a list of messages, not an object"),
        ({"data": [CHAT, CHAT]}, "the records seem to be inside of `data`; write that list alone"),
        ({"messages": [USER | {"weight": 1}]}, "message 1 is to be learned, but only the assist"),
        ({"messages": [USER, ANSWER | {"weight": 0.5}]}, r"message 2 must have 0 or 1 .* not 0\.5"),
        ({"messages": [ANSWER | {"train": True, "weight": 0}]}, "has `train` and `weight`; leave"),
        ({"messages": [ANSWER | {"function_call": CALL}]}, "`function_call` is not supported; wri"),
        ({"messages": [USER | {"images": ["x"]}]}, "message 1: `images` is not supported"),
        ({"messages": [USER | {"content": [{"type": "image"}]}]}, "other than text: image"),
        ({"messages": [USER | {"value": "b"}]}, "message 1 has `content` and `value`; leave one"),
    ],
)
def test_what_is_refused(record, match):
    assert re.search(match, report(parse, record))


@pytest.mark.parametrize(
    ("field", "value", "content"),
    [
        ("dialog", SHAREGPT, Chat([SYSTEM, USER, ANSWER])),
        ("body", "t", Text("t")),
        ("body", None, Text("")),
        ("body", json.dumps([USER, ANSWER]), Chat([SYSTEM, USER, ANSWER])),
        ("body", '["t"]', Text('["t"]')),
    ],
)
def test_a_named_field(field, value, content):
    record = {field: value, "system": "s", "text": "no", "messages": [USER]}
    assert parse(record, field) == content
    assert "expected a text or a list of messages, got 3" in report(parse, {field: 3}, field)
    assert f"no field '{field}'" in report(parse, {"text": "a"}, field)
