"""Requests of the responses API, as chat requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_jax.serve.body.content import joined
from dart_jax.serve.body.errors import bad
from dart_jax.serve.body.fields import ChatFields, ResponseFields, checked

# What `include` may ask for: log-probabilities, and reasoning, of which there is none.
LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (LOGPROBS, "reasoning.encrypted_content")

_TEXTS = (
    "input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"
)  # fmt: skip

# Fields that responses do not have, or have by another name.
_OF_CHATS = {"max_tokens", "prompt_logprobs", "response_format"}

# Fields that chats do not have, or have in another form.
_OWN = {
    "input", "instructions", "max_output_tokens", "include", "tools", "tool_choice", "text",
    "metadata", "top_logprobs", "truncation",
}  # fmt: skip


def chat_of(fields: ResponseFields) -> ChatFields:
    """Returns the request of a chat whose answer is the response.

    Raises:
      ApiError: the input, a tool or the format of the text is none, or not supported.
    """
    if fields.n != 1:
        raise bad("a response has one text; leave out n", "n")
    for name in _OF_CHATS & fields.model_fields_set:
        raise bad(f"{name} is not a field of responses; leave it out", name)
    for name in fields.include:
        if name not in _INCLUDED:
            raise bad(f"include must have only {' and '.join(_INCLUDED)}", "include")
    given = fields.model_dump(exclude_unset=True)
    values = {name: value for name, value in given.items() if name not in _OWN}
    values["messages"] = _messages(fields)
    if fields.max_output_tokens is not None:
        values["max_tokens"] = fields.max_output_tokens
    if fields.truncation == "auto":
        values.setdefault("truncate_prompt_tokens", -1)
    if LOGPROBS in fields.include:
        values |= {"logprobs": True, "top_logprobs": fields.top_logprobs or 0}
        if fields.tools and fields.tool_choice != "none":
            raise bad("log-probabilities with tools are not supported", "include")
    elif fields.top_logprobs:
        raise bad(f"top_logprobs needs {LOGPROBS} in include", "top_logprobs")
    values["tools"] = [_nested(tool) for tool in fields.tools]
    choice = fields.tool_choice
    values["tool_choice"] = choice if isinstance(choice, str) else _nested_choice(choice)
    if (format := _format(fields.text)) is not None:
        values["response_format"] = format
    return checked(ChatFields.model_validate, values)


def _nested(tool: Mapping[str, Any], key: str = "function") -> dict[str, Any]:
    """Returns a tool, or the choice of one, as chats have it: all but the type under a key."""
    content = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": tool.get("type"), key: content}


def _nested_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the choice of tools as chats have it."""
    if choice.get("type") != "allowed_tools":
        return _nested(choice)
    tools = choice.get("tools")
    if isinstance(tools, list):
        tools = [_nested(tool) if isinstance(tool, Mapping) else tool for tool in tools]
    return _nested({**choice, "tools": tools}, "allowed_tools")


def _format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the `response_format` of a text's options, if there is one."""
    for name, value in text.items():
        if name != "format" and value not in (None, "medium"):
            raise bad(f"text.{name} is not supported by this server; leave it out", "text")
    format = text.get("format")
    if format is None:
        return None
    if not isinstance(format, Mapping):
        raise bad("text.format must be an object", "text")
    kind = format.get("type")
    return {"type": kind, "json_schema": dict(format)} if kind == "json_schema" else dict(format)


def _messages(fields: ResponseFields) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if fields.instructions is not None:
        messages.append({"role": "system", "content": fields.instructions})
    items = fields.input
    if not items:
        raise bad("input must not be empty", "input")
    for place, item in enumerate(
        [{"role": "user", "content": items}] if isinstance(items, str) else items
    ):
        _add(messages, item, f"input.{place}")
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    """Adds an item to the messages."""
    kind = item.get("type") or "message"
    if kind == "message":
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str):
            raise bad(f"{where}.role is missing", "input")
        if role == "assistant":
            _answer(messages, text=True)["content"] += _content(content or "", where)
        else:
            messages.append({"role": role, "content": _content(content, where)})
    elif kind == "function_call":
        function = {name: item.get(name) for name in ("name", "arguments")}
        if not isinstance(function["name"], str):
            raise bad(f"{where}.name is missing", "input")
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        _answer(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = _content(item.get("output") or "", where)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind == "reasoning":
        if thoughts := _content(item.get("content") or item.get("summary") or "", where):
            said = _answer(messages, text=True)
            before = said.get("reasoning_content")
            said["reasoning_content"] = f"{before}\n{thoughts}" if before else thoughts
    elif kind == "item_reference":
        message = f"{where} refers to an item, but none are stored here; send the items themselves"
        raise bad(f"{message}, as clients do with store=false", "input")
    else:
        raise bad(f"{where} is a {kind!r:.50}, which this server does not support", "input")


def _answer(messages: list[dict[str, Any]], *, text: bool = False) -> dict[str, Any]:
    """Returns the answer of which an item is a part: the last message, or a new one.

    Args:
      messages: so far.
      text: whether the item is a text, which no other text precedes directly.
    """
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or (text and last["content"] and "tool_calls" not in last):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    return last


def _content(content: Any, where: str) -> str:
    """Returns the text of a content."""
    if isinstance(content, str):
        return content
    return joined(content if isinstance(content, list) else [content], where, _TEXTS)
