"""Requests for responses, as those of chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_jax.serve.errors import bad
from dart_jax.serve.fields import ChatFields, ResponseFields, checked
from dart_jax.serve.prompts import joined

# What `include` may ask for: log-probabilities, and reasoning, of which there is none.
LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (LOGPROBS, "reasoning.encrypted_content")

_TEXTS = ("input_text", "output_text", "text", "refusal")

# Fields that responses do not have, or have by another name.
_OF_CHATS = {"max_tokens", "prompt_logprobs", "response_format", "stream_options"}

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
            raise bad("log-probabilities beside tools are not supported", "include")
    elif fields.top_logprobs:
        raise bad(f"top_logprobs needs {LOGPROBS} in include", "top_logprobs")
    values["tools"] = [_nested(tool) for tool in fields.tools]
    choice = fields.tool_choice
    values["tool_choice"] = choice if isinstance(choice, str) else _nested(choice)
    if (format := _format(fields.text)) is not None:
        values["response_format"] = format
    return checked(ChatFields, values)


def _nested(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool, or the choice of one, as chats have it."""
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": tool.get("type"), "function": function}


def _format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `response_format` of a text's options; None if there is none."""
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
    kind, last = item.get("type") or "message", messages[-1] if messages else {}
    if kind == "message":
        role, content = item.get("role"), _content(item.get("content"), where)
        if not isinstance(role, str):
            raise bad(f"{where}.role is missing", "input")
        role = "system" if role == "developer" else role
        if role == last.get("role") == "system":  # templates accept one
            last["content"] = f"{last['content']}\n\n{content}"
        else:
            messages.append({"role": role, "content": content})
    elif kind == "function_call":
        function = {name: item.get(name) for name in ("name", "arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        content = _content(item.get("output"), where)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind == "item_reference":
        message = f"{where} refers to an item, but none are stored here; send the items themselves"
        raise bad(f"{message}, as clients do with store=false", "input")
    elif kind != "reasoning":  # of another model, and no part of what it said
        raise bad(f"{where} is a {kind!r:.50}, which this server does not support", "input")


def _content(content: Any, where: str) -> str:
    """The text of a content."""
    if isinstance(content, str):
        return content
    return joined(content if isinstance(content, list) else [content], where, _TEXTS)
