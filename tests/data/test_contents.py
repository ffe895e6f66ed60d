"""Contents of records: every field is read, refused by name, or named in a warning."""

import json
import re

import duckdb
import pytest
from refusals import report

from dart_jax.data.contents import Chat, Completion, Text, Tokens, parse, read_contents
from dart_jax.errors import InputWarning, UserError

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
CALL = {"name": "f", "arguments": {"x": 1}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]}


@pytest.mark.parametrize(
    ("record", "content"),
    [
        # What stands beside a chat.
        ({"conversations": SHAREGPT, "system": "s"}, Chat([SYSTEM, USER, ANSWER])),
        ({"messages": [USER, ANSWER], "system": " "}, Chat([USER, ANSWER])),
        ({"messages": [SYSTEM, USER, ANSWER], "system": "s\n"}, Chat([SYSTEM, USER, ANSWER])),
        ({"question": "a", "response": "b", "system_prompt": "s"}, Chat([SYSTEM, USER, ANSWER])),
        ({"instruction": "a", "output": "b", "system": "s"}, Chat([SYSTEM, USER, ANSWER])),
        ({"messages": [USER, ANSWER], "tools": TOOLS}, Chat([USER, ANSWER], TOOLS)),
        ({"conversations": SHAREGPT, "tools": json.dumps(TOOLS)}, Chat([USER, ANSWER], TOOLS)),
        ({"messages": [USER, ANSWER], "tools": "[]"}, Chat([USER, ANSWER])),
        ({"messages": [USER, ANSWER], "tools": ""}, Chat([USER, ANSWER])),
        # What is not to be learned.
        ({"messages": [USER, ANSWER | {"train": False}]}, Chat([USER, ANSWER], None, (1,))),
        ({"messages": [USER, ANSWER | {"weight": 0}]}, Chat([USER, ANSWER], None, (1,))),
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
        ({"messages": [{"role": "human", "value": "a"}]}, Chat([USER])),
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
        ({"text": "t", "tokens": ["t"]}, Text("t")),
        ({"text": None}, Text("")),
        ({"tokens": [1, 2], "prompt_length": 1, "text": "t"}, Tokens([1, 2], 1)),
        ({"messages": [USER, ANSWER], "chosen": [USER, ANSWER]}, Chat([USER, ANSWER])),
        ({"messages": [USER, ANSWER], "images": [], "weight": 1}, Chat([USER, ANSWER])),
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
        (CHAT | {"system": "s", "system_prompt": "t"}, "`system_prompt` and the first message are"),
        (CHAT | {"system": ["s"]}, "`system` must be a string, not an array"),
        (CHAT | {"tools": "f, g"}, "`tools` must be a list of objects, not a string"),
        (CHAT | {"tools": {"f": 1}}, "`tools` must be a list of objects, not an object"),
        (CHAT | {"functions": [{"name": "f"}]}, "`functions` is not supported; write them as `too"),
        (CHAT | {"images": ["a.png"]}, "`images` is not supported; only text is read"),
        (CHAT | {"documents": [{"text": "d"}]}, "`documents` is not supported"),
        (CHAT | {"chat_template_kwargs": {"x": 1}}, "leave them out; options of the template"),
        (CHAT | {"weight": 0.5}, r"`weight` must be 1, not 0\.5"),
        ({"text": "a", "weight": 0}, "`weight` must be 1, not 0"),
        (CHAT | {"loss_mask": [0, 1]}, "`loss_mask` is not supported"),
        ({"tokens": [1, 2], "labels": [-100, 2]}, "`labels` is not supported"),
        (CHAT | {"history": [["a", "b"]]}, "`history` is not supported; write it as `messages`"),
        (
            {"prompt": "a", "completion": "b", "system": "s"},
            "`system` beside `prompt` needs a chat",
        ),
        (
            {"prompt": "a", "completion": "b", "tools": TOOLS},
            "`tools` beside `prompt` needs a chat",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "rename `chosen`, to `messages` where"),
        ({"chosen": "H: a A: b", "rejected": "H: a A: c"}, "a preference; rename `chosen`, to"),
        (CHAT | {"label": False}, "`label` says that the answer is not wanted"),
        ({"prompt": "a", "completion": "b", "kto_tag": False}, "`kto_tag` says that the answer"),
        ({"question": "a", "context": "c", "answer": "b"}, "`context` beside `question` is not re"),
        ({"dialog": [USER, ANSWER]}, "`dialog` holds messages; write the whole chat"),
        ({"prompt": [USER], "response": "b"}, "`prompt` holds messages; write the whole chat"),
        ({"messages": {"role": ["user"]}}, "must be a list of messages, not an object"),
        ({"data": [CHAT, CHAT]}, "the records seem to be inside of `data`; write that list alone"),
        ({"version": "1", "train": [CHAT]}, "the records seem to be inside of `train`"),
        ({"messages": [USER | {"weight": 1}]}, "message 1 is to be learned, but only the assist"),
        ({"messages": [USER, ANSWER | {"weight": 0.5}]}, r"message 2 must have 0 or 1 .* not 0\.5"),
        ({"messages": [ANSWER | {"train": True, "weight": 0}]}, "has `train` and `weight`; leave"),
        ({"messages": [ANSWER | {"train_detail": [{}]}]}, "`train_detail` is not supported"),
        ({"messages": [ANSWER | {"function_call": CALL}]}, "`function_call` is not supported; wri"),
        ({"messages": [USER | {"images": ["x"]}]}, "message 1: `images` is not supported"),
        ({"messages": [USER | {"content": [{"type": "image"}]}]}, "other than text: image"),
        ({"messages": [USER | {"value": "b"}]}, "message 1 has `content` and `value`; leave one"),
        ({"messages": [USER | {"from": "gpt"}]}, "message 1 has `role` and `from`; leave one"),
    ],
)
def test_what_is_refused(record, match):
    assert re.search(match, report(parse, record))


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_what_is_not_used_is_named_once(tmp_path):
    described = {"id": 1, "source": "x", "finish": "stop", "prompt": "a", "chosen": None}
    others = {"label": 0, "rubric": {"a": 1}, "novel": "else", "empty": [], "none": None}
    path = write(tmp_path / "a.jsonl", CHAT | described, CHAT | others, CHAT | others)
    warned = set()
    with pytest.warns(InputWarning) as caught:
        contents = [*read_contents(path, warned=warned), *read_contents(path, warned=warned)]
    assert len(contents) == 6
    assert [str(one.message) for one in caught] == [f"{path}:2: not used: rubric, novel"]


def test_parquet_and_lines_hold_the_same(tmp_path):
    """A table gives every record all fields, and all objects inside of it, too."""
    records = [
        {"conversations": SHAREGPT, "system": "s", "tools": TOOLS},
        {"conversations": [SHAREGPT[0], SHAREGPT[1] | {"weight": 0}], "id": "x"},
        {"conversations": [SHAREGPT[0], {"from": "gpt", "tool_calls": CALLS["tool_calls"]}]},
        {"messages": [USER, ANSWER | {"reasoning_content": "hm"}]},
        {"instruction": "a", "output": "b"},
        {"prompt": "a", "completion": "b"},
        {"text": "t"},
        {"tokens": [1, 2], "prompt_length": 1},
    ]
    path = write(tmp_path / "a.jsonl", *records)
    table = tmp_path / "a.parquet"
    with duckdb.connect() as database:
        database.execute(f"copy (select * from read_json('{path}')) to '{table}'")
    contents = [content for content, _ in read_contents(path)]
    assert [content for content, _ in read_contents(table)] == contents
    assert contents[0] == Chat([SYSTEM, USER, ANSWER], TOOLS)
    assert contents[1].unlearned == (1,)


def test_a_named_field(tmp_path):
    record = {"dialog": SHAREGPT, "system": "s", "text": "no", "n": 3}
    assert parse(record, "dialog") == Chat([SYSTEM, USER, ANSWER])
    assert parse({"body": "t", "messages": [USER]}, "body") == Text("t")
    assert parse({"body": None}, "body") == Text("")
    assert parse({"body": json.dumps([USER, ANSWER])}, "body") == Chat([USER, ANSWER])
    assert parse({"body": '["t"]'}, "body") == Text('["t"]')
    for name, match in (
        ("n", "expected a text or a list of messages, got 3"),
        ("x", "no field 'x'"),
    ):
        with pytest.raises(UserError, match=match):
            parse(record, name)


def test_what_is_nested_too_deeply_is_one_bad_record(tmp_path):
    path = tmp_path / "a.jsonl"
    deep = '{"a":' * 900 + "1" + "}" * 900
    chat = json.dumps(CHAT)
    path.write_text(f'{chat}\n{chat[:-3]}, "x": {deep}}}]}}\n{chat}\n')
    errors = []
    assert [content for content, _ in read_contents(path, bad=errors.append)] == [parse(CHAT)] * 2
    assert len(errors) == 1
