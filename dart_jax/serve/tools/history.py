"""Messages with calls of tools and their results, as the chat template takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from dart_jax.serve.body.errors import bad
from dart_jax.serve.tools.formats import HERMES, ToolFormat, format_of
from dart_jax.serve.tools.request import Tools
from dart_jax.text.chat_template import ChatTemplate
from dart_jax.text.tokenizer import Tokenizer

_PROMPT = """You can call functions. Each line between <tools> and </tools> describes one:
<tools>
{}
</tools>
To call one, write its name and its arguments as JSON:
<tool_call>
{{"name": ..., "arguments": {{...}}}}
</tool_call>"""

_Message = dict[str, Any]


def with_tools(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    tools: Tools | None,
) -> Iterator[tuple[list[_Message], list[dict[str, Any]] | None]]:
    """Yields the messages of a chat and the tools that its template reads, written in several ways.
    The first that the template takes is the best.

    Calls and results become text where the template does not show them, or the answer may call
    tools of which it knows nothing, and calls whose arguments are no JSON object always.

    Args:
      tokenizer: has the template.
      messages: the content of those that call tools, or are of one, is a text.
      options: of the template.
      tools: that the answer may call.

    Raises:
      ApiError: a call is none, or an id no text.
      UserError: there is no such template.
    """
    turns = [_Turn.of(message, place) for place, message in enumerate(messages)]
    described = None if tools is None else tools.described
    source = tokenizer.template_for({**options, "tools": described})
    template, format = tokenizer.template(source), format_of(source)
    if format is None:
        if described is None and template.calls is not None:
            yield _as_calls(turns, HERMES, template), None
        yield _with_prompt(_as_text(turns, HERMES), described), None
        return
    if template.calls is not None:
        yield _as_calls(turns, format, template), described
    else:
        yield _as_text(turns, format, keep_results=template.results), described
    if any(turn.calls or turn.is_result for turn in turns):
        yield _as_text(turns, format), described


class _Call(NamedTuple):
    """A call.

    Attributes:
      given: as the client sent it.
      name: of the function.
      text: its arguments, as the model wrote them.
      arguments: the same as an object, or None if they are no JSON object.
    """

    given: Mapping[str, Any]
    name: str
    text: str
    arguments: Mapping[str, Any] | None

    @classmethod
    def of(cls, given: Any, place: int) -> _Call:
        """Reads a call; raises ApiError if it is none, or its id no text."""
        function = given.get("function") if isinstance(given, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            message = f"messages.{place}.tool_calls has one without a function's name"
            raise bad(message, "messages")
        if not isinstance(given.get("id"), str | None):
            raise bad(f"messages.{place}.tool_calls has one whose id is no text", "messages")
        text = function.get("arguments") or "{}"
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False)
        try:
            arguments = json.loads(text)
            json.dumps(arguments, ensure_ascii=False).encode()  # as the template does
        except (RecursionError, ValueError):
            arguments = None
        arguments = arguments if isinstance(arguments, dict) else None
        return cls(given, function["name"], text, arguments)


class _Turn(NamedTuple):
    """A message without its calls, and these."""

    message: _Message
    calls: list[_Call]

    @classmethod
    def of(cls, message: Mapping[str, Any], place: int) -> _Turn:
        """Reads a message; raises ApiError if a call is none, or an id no text."""
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise bad(f"messages.{place}.tool_calls must be a list", "messages")
        if not isinstance(message.get("tool_call_id"), str | None):
            raise bad(f"messages.{place}.tool_call_id must be a text", "messages")
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        return cls(rest, [_Call.of(call, place) for call in calls])

    @property
    def is_result(self) -> bool:
        """Whether it is what a tool returned."""
        return self.message.get("role") == "tool"

    def written(self, format: ToolFormat) -> _Message:
        """Returns the message with its calls as text."""
        if not self.calls:
            return self.message
        calls = format.write(
            (name, text if arguments is None else arguments)
            for _, name, text, arguments in self.calls
        )
        return {**self.message, "content": _lines(self.message.get("content"), calls)}


def _as_calls(turns: Sequence[_Turn], format: ToolFormat, template: ChatTemplate) -> list[_Message]:
    """Returns the messages for a template that shows calls."""
    result: list[_Message] = []
    rest = list(turns)
    while rest:
        turn = rest.pop(0)
        message, calls = turn
        if not calls or any(call.arguments is None for call in calls):
            result.append(turn.written(format))
            continue
        if message.get("content") and not template.text_beside_calls:
            result.append(message)
            message = {"role": message["role"]}
        if len(calls) == 1 or template.several_calls:
            result.append(_calling(message, calls, template))
            continue
        results = [each.message for each in takewhile(lambda each: each.is_result, rest)]
        del rest[: len(results)]
        for call in calls:
            result.append(_calling(message, [call], template))
            own = [each for each in results if each.get("tool_call_id") == call.given.get("id")]
            result += own
            results = [each for each in results if each not in own]
            message = {"role": message["role"]}
        result += results
    return result


def _calling(message: _Message, calls: Sequence[_Call], template: ChatTemplate) -> _Message:
    """Returns the message with some calls, as the template reads them."""
    assert template.calls is not None
    objects, empty = template.calls
    written = [
        {
            **call.given,
            "function": {
                **call.given["function"],
                "arguments": call.arguments if objects else call.text,
            },
        }
        for call in calls
    ]
    return {**message, "content": message.get("content") or empty, "tool_calls": written}


def _as_text(
    turns: Sequence[_Turn], format: ToolFormat, *, keep_results: bool = False
) -> list[_Message]:
    """Returns the messages with calls as text. Results are parts of the user's turns, unless they
    are kept, as templates want roles to alternate."""
    result: list[_Message] = []
    open_turn = False  # whether the last turn of the user consists of results
    for turn in turns:
        message, last = turn.written(format), result[-1] if result else {}
        content, role = message.get("content"), message.get("role")
        as_user = turn.is_result and not keep_results
        if as_user:
            content = f"<tool_response>\n{content}\n</tool_response>"
            message = {"role": "user", "content": content}
        if last.get("role") == "user" and (as_user or (open_turn and role == "user")):
            result[-1] = {**last, "content": _lines(last.get("content"), content)}
        else:
            result.append(message)
        open_turn = as_user
    return result


def _with_prompt(
    messages: list[_Message], described: Sequence[Mapping[str, Any]] | None
) -> list[_Message]:
    """Adds a description of the tools, if there are any, to the messages' instructions."""
    if described is None:
        return messages
    text = _PROMPT.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in described))
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    content = f"{first['content']}\n\n{text}" if first.get("content") else text
    return [{**first, "content": content}, *messages[1:]]


def _lines(first: Any, second: Any) -> str:
    """Two texts, one below the other."""
    return "\n".join(text for text in (first, second) if isinstance(text, str) and text)
