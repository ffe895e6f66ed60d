"""Questions of benchmarks: the user's turns, read from records of many formats.

Every record is read by the first of these formats that its fields match:

    {"turns": ["..", ".."]}                            MT-bench of FastChat and EAGLE
    {"prompt": ["..", ".."]}                           MT-bench on the Hugging Face hub
    {"prompt": "..", "entry_point": ".."}              HumanEval
    {"text": "..", "test_list": ["..", ..]}            MBPP; `prompt` in its sanitized form
    {"question_content": "..", "starter_code": ".."}   LiveCodeBench; the code is optional
    {"instruction": "..", "input": ".."}               Alpaca, CodeAlpaca; or `context`; optional
    {"problem": ".."}                                  MATH-500
    {"question": ".."}                                 GSM8K
    {"query": ".."}                                    MetaMath
    {"prompt": ".."}                                   any other, used unchanged

A record with `messages`, `conversations` or another chat (see `dart_jax.data.contents`) is read
after `turns`: the model answers its user's turns, up to a tool call. System prompts and tools with
any of these are part of the prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dart_jax.data.contents import MORE, TURNS, chat, parse, refuse_more, refuse_unsupported
from dart_jax.data.messages import Chat, alternating, is_messages
from dart_jax.data.records import Record, kind
from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.tools import with_tools


@dataclasses.dataclass(frozen=True)
class Question:
    """One item of a benchmark, by name; from which file and line.

    Attributes:
      group: its category if the benchmark has categories, otherwise the benchmark's title.
      turns: the user's turns, or results of tools; the model answers each.
      raw: text to continue, for models without a chat template; None: the turns.
      before: messages before the first turn: a system prompt, an earlier conversation.
      tools: for the chat template.
      first: index of the first turn that is a prompt; those before it are answered only for it.
      sender: fields of the turns' messages beside the content, unless the user says them.
    """

    bench: str
    group: str
    turns: tuple[str, ...]
    where: str
    raw: str | None = None
    before: tuple[dict[str, Any], ...] = ()
    tools: list[dict[str, Any]] | None = None
    first: int = 0
    sender: dict[str, Any] | None = None


def read_question(record: Record, bench: str, title: str, by_category: bool = False) -> Question:
    """Reads the question of a record; `title` is the group of one without a category, or of all
    unless categories are groups. Raises UserError if the record matches none of the formats, or a
    field is invalid."""
    value = record.value
    try:
        value = {"messages": value} if is_messages(value) else value
        if not isinstance(value, dict):
            raise UserError(f"a record must be an object, not {kind(value)}")
        # Parquet fills missing fields with None.
        fields = {name: field for name, field in value.items() if field is not None}
        refuse_unsupported(fields)
        content, raw = parse(fields) if _is_chat(fields) else None, None
        if isinstance(content, Chat):
            before, turns, tools = _answerable(content)
        else:
            turns, raw = _turns(fields)
            messages, tools, _ = chat(fields, Chat(alternating(list(turns[:1]))))
            before = tuple(messages[:-1])
    except UserError as error:
        raise UserError(f"{record.where}: {error}") from None
    category = fields.get("category") if by_category else None
    group = category if isinstance(category, str) and category.strip() else title
    return Question(bench, group, turns, record.where, raw, before, tools)


def prompt_tokens(
    question: Question, answers: Sequence[str], tokenizer: Tokenizer, thinking: bool
) -> np.ndarray:
    """Returns the prompt of the turn after the answered ones, int32 [P]: in the chat template, or
    plain if there is none; raises UserError if the template rejects the messages. `thinking` is the
    template's `enable_thinking`."""
    turn = len(answers)
    texts = [text for pair in zip(question.turns, answers, strict=False) for text in pair]
    texts.append(question.turns[turn])
    turns = alternating(texts)
    turns[::2] = [each | (question.sender or {}) for each in turns[::2]]
    messages, tools = with_tools(tokenizer, [*question.before, *turns], question.tools)
    if tokenizer.chat_template:
        ids = tokenizer.encode_chat(messages, enable_thinking=thinking, tools=tools)
    else:
        text = "\n\n".join(message["content"] for message in messages)
        ids = tokenizer.encode(text if question.raw is None else question.raw)
    return np.array(ids, np.int32)


def _is_chat(record: dict[str, Any]) -> bool:
    if "turns" in record:
        return False
    prompted = [record.get("prompt"), record.get("completion")]
    lists = any(isinstance(each, list) for each in prompted) and None not in prompted
    lists = lists or is_messages(record.get("prompt"))
    return lists or any(name in record for name in TURNS) or isinstance(record.get("data"), list)


def _answerable(
    content: Chat,
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...], list[dict[str, Any]] | None]:
    """Returns the messages before the first turn, the user's turns up to a tool call, and tools."""
    messages = content.messages
    first = next((n for n, each in enumerate(messages) if each["role"] == "user"), len(messages))
    before = messages[:first]
    turns: list[str] = []
    if any(each["role"] not in ("system", "developer") for each in before):
        raise UserError("the chat does not begin with the user")
    for n, message in enumerate(messages[first:]):
        if message["role"] == "tool" or "tool_calls" in message:
            break
        if message["role"] != ("user", "assistant")[n % 2]:
            raise UserError("user and assistant do not take turns")
        if message["role"] == "user":
            turns.append(_checked(message["content"], f"turn {len(turns) + 1}"))
    if not turns:
        raise UserError("there is no turn of the user")
    return tuple(before), tuple(turns), content.tools


def _turns(record: dict[str, Any]) -> tuple[tuple[str, ...], str | None]:
    """Returns the turns, and the text to continue, which only HumanEval has."""
    if "turns" in record or isinstance(record.get("prompt"), list):
        return _texts(record, "turns" if "turns" in record else "prompt"), None
    if "prompt" in record and "entry_point" in record:
        prompt = _text(record, "prompt")
        task = "Complete this Python function. Answer with the whole function."
        return (f"{task}\n\n{fenced(prompt)}",), prompt
    for (name, *others), instructions in _FORMATS.items():
        if all(each in record for each in (name, *others)):
            if name in _SINGLE:
                refuse_more(record, name)
            parts = (_text(record, name), *instructions(record))
            return ("\n\n".join(parts),), None
    fields = ", ".join(map(str, list(record)[:8])) or "none"
    raise UserError(
        f"no question in a known format; it has the fields {fields}; use `turns` or `prompt`"
    )


def _tests(record: dict[str, Any]) -> list[str]:
    tests = "\n".join(_texts(record, "test_list"))
    return ["Write it in Python, so that these tests pass:", fenced(tests)]


def _code(record: dict[str, Any]) -> list[str]:
    code = _text(record, "starter_code", optional=True)
    if code.strip():
        return ["Solve this in Python. Go on from this code:", fenced(code)]
    return [
        "Solve this with a Python program that reads its input from stdin and writes its output to "
        "stdout."
    ]


def _more(record: dict[str, Any]) -> list[str]:
    return [text for name in MORE if (text := _text(record, name, optional=True)).strip()]


# Fields, of which the first is the task -> what is written below it.
_FORMATS: dict[tuple[str, ...], Callable[[dict[str, Any]], list[str]]] = {
    ("text", "test_list"): _tests,
    ("prompt", "test_list"): _tests,
    ("question_content",): _code,
    ("instruction",): _more,
    ("problem",): lambda _: [r"Reason step by step and put the final answer in \boxed{}."],
    ("question",): lambda _: [],
    ("query",): lambda _: [],
    ("prompt",): lambda _: [],
}

# Tasks with which nothing else is read.
_SINGLE = ("problem", "question", "query")


def fenced(code: str) -> str:
    """Returns code in a block of Markdown."""
    code = code.lstrip("\r\n").rstrip()
    return f"```python\n{code}\n```"


def _text(record: dict[str, Any], field: str, optional: bool = False) -> str:
    if optional and field not in record:
        return ""
    return _checked(record[field], f"`{field}`", optional)


def _texts(record: dict[str, Any], field: str) -> tuple[str, ...]:
    texts = record[field]
    if not isinstance(texts, list) or not texts:
        problem = "empty" if texts == [] else kind(texts)
        raise UserError(f"`{field}` must be a list of strings, not {problem}")
    return tuple(_checked(text, f"`{field}`, number {n},") for n, text in enumerate(texts, 1))


def _checked(text: Any, name: str, blank: bool = False) -> str:
    if not isinstance(text, str):
        raise UserError(f"{name} must be a string, not {kind(text)}")
    if not blank and not text.strip():
        raise UserError(f"{name} is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON can hold these, but no tokenizer accepts them.
        raise UserError(f"{name} holds half of a surrogate pair; replace it") from None
    return text
