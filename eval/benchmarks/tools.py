"""Chats with calls of tools, as a target's chat template takes them, or as plain text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dart_jax.text.tokenizer import Tokenizer

_Message = dict[str, Any]


def with_tools(
    tokenizer: Tokenizer, messages: Sequence[_Message], tools: list[_Message] | None
) -> tuple[list[_Message], list[_Message] | None]:
    """Returns messages and tools for the chat template. If a message has calls, and the template
    does not show them, or there is none, calls and results are texts, and so are the tools, before
    the first message. Arguments of calls are objects."""
    if not any("tool_calls" in message for message in messages):
        return list(messages), tools
    style = None
    if tokenizer.chat_template:
        source = tokenizer.template_for({"tools": tools})
        style = tokenizer.template(source).calls
    if style is None:
        first, *others = map(_as_text, messages)
        described = _lines(tool["function"] for tool in tools or ())
        content = f"Tools:\n{described}\n\n{first['content']}"
        return [first | {"content": content}, *others], None
    return [_calling(message, style.objects, style.empty) for message in messages], tools


def _as_text(message: _Message) -> _Message:
    """Results are the user's, as many templates want roles to alternate."""
    if message["role"] == "tool":
        return {"role": "user", "content": message["content"]}
    calls = message.get("tool_calls")
    if calls is None:
        return message
    return {"role": message["role"], "content": _lines(each["function"] for each in calls)}


def _calling(message: _Message, objects: bool, empty: str | None) -> _Message:
    if "tool_calls" not in message:
        return message
    functions = [each["function"] for each in message["tool_calls"]]
    if not objects:
        functions = [each | {"arguments": json.dumps(each["arguments"])} for each in functions]
    calls = [
        {**call, "function": function}
        for call, function in zip(message["tool_calls"], functions, strict=True)
    ]
    return message | {"content": message["content"] or empty, "tool_calls": calls}


def _lines(values: Iterable[Any]) -> str:
    return "\n".join(map(json.dumps, values))
