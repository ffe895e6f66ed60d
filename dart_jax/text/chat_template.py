"""What a chat template takes, and messages as it takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, reduce
from itertools import takewhile
from typing import Any, NamedTuple

Message = dict[str, Any]

# Marks around what a model thinks before it answers.
THINK, END_OF_THINK = "<think>", "</think>"

# Fields of a message that may hold it.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")

# Texts that no template contains. JSON and Python write them as they are.
_ONE, _TWO, _THREE, _FOUR, _FIVE = (f"q{n}probe" for n in range(5))

_INSTRUCTIONS = ("system", "developer")

_ID = "123456789"  # of the length that Mistral's templates want

_USER: Message = {"role": "user", "content": "a"}
_ANSWER: Message = {"role": "assistant", "content": "b"}
_RESULT: Message = {"role": "tool", "tool_call_id": _ID, "content": _FOUR}


class CallStyle(NamedTuple):
    """How a template reads a message with calls of tools.

    Attributes:
      objects: whether arguments are objects, rather than texts of JSON.
      empty: the content of a message that has no text.
    """

    objects: bool
    empty: str | None


class ChatTemplate:
    """A chat template, given by its source.

    What it takes is found by rendering short chats, when somebody asks for the first time: it
    leaves out everything else, or raises an error. Where instructions may be is found with each
    chat, as it may depend on its options.
    """

    def __init__(self, source: str, render: Callable[[list[Message], Mapping[str, Any]], str]):
        """`render` writes messages with this template and options, and may raise anything."""
        self._source, self._render = source, render

    def messages(
        self, messages: Iterable[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[Message]:
        """Returns the messages of a chat, each with a `role`, as the template takes them.

        Fields that say nothing are left out. Instructions that it would not show with these options
        are part of the user's next turn. Where it reads contents only as lists of parts, as
        templates of some vision-language models, texts are such lists.
        """
        return self._with_parts(self._with_known_roles(list(map(_saying, messages)), options))

    def without_thoughts(self, message: Mapping[str, Any]) -> Message:
        """Returns a message of the history, as models that think take it.

        What the assistant thought, at the beginning of its content or in a field of its own, is
        left out, unless the template reads such a field, and decides which turns show it.
        """
        message = dict(message)
        thinks = THINK in self._source or END_OF_THINK in self._source
        if message["role"] != "assistant" or not thinks:
            return message
        fields = [message.pop(name, None) for name in _THOUGHTS]
        fields = [field for field in fields if isinstance(field, str)]
        # With an empty field, the template looks for no thoughts in the content.
        thoughts = next(filter(None, fields), "" if fields else None)
        content = message.get("content")
        if isinstance(content, str) and _thinks(content):
            inner, _, content = content.partition(END_OF_THINK)
            thoughts = thoughts or inner.lstrip().removeprefix(THINK)
            message["content"] = content.lstrip("\n")
        if thoughts is not None and self._thoughts is not None:
            message[self._thoughts] = thoughts.strip("\n")
        return message

    @cached_property
    def calls(self) -> CallStyle | None:
        """How it reads calls, or None if it does not show them."""
        styles = [CallStyle(objects, empty) for objects in (True, False) for empty in (None, "")]
        shown: dict[CallStyle, int] = {}
        for style in styles:
            text = self._text([_USER, _calling(style, _ONE), _RESULT])
            if all(probe in text for probe in (_ONE, _TWO, _THREE)):
                # Python's way to write an object, JSON in JSON, and no content.
                shown[style] = sum(sign in text for sign in (f"'{_TWO}'", f'\\"{_TWO}', "None"))
        return min(shown, key=lambda style: shown[style], default=None)

    @cached_property
    def several_calls(self) -> bool:
        """Whether a message may have several calls."""
        return self._shows_calls(_ONE, _FIVE)

    @cached_property
    def text_beside_calls(self) -> bool:
        """Whether a message may have both a text and calls."""
        return self._shows_calls(_ONE, content=_FIVE)

    @cached_property
    def results(self) -> bool:
        """Whether it shows what tools return."""
        return self._shows([_USER, _ANSWER, _RESULT], _FOUR)

    @cached_property
    def _only_parts(self) -> bool:
        """Whether it shows a list of parts, but no text."""

        def shown(content: Any) -> bool:
            return _ONE in self._try([{"role": "user", "content": content}])

        return not shown(_ONE) and shown(_parts(_ONE))

    @cached_property
    def _thoughts(self) -> str | None:
        """The field from which it takes what the assistant thought, or None."""
        return next(
            (n for n in _THOUGHTS if re.search(rf"\.{n}\b|['\"]{n}['\"]", self._source)), None
        )

    def _with_known_roles(
        self, messages: list[Message], options: Mapping[str, Any]
    ) -> list[Message]:
        """Messages without roles that the template lacks, at the places where it lacks them."""
        if not any(map(_instructs, messages)):
            return messages
        system = [
            each | {"role": "system"} if each["role"] == "developer" else each for each in messages
        ]
        # Many templates show any role.
        chats = [messages, system] if "developer" in self._source else [system]
        for chat in (*chats, *map(_first_together, chats)):
            if self._instructed(chat, options):
                return chat
        return _moved(system)

    def _instructed(self, messages: list[Message], options: Mapping[str, Any]) -> bool:
        """Returns whether it shows all instructions of a chat."""
        probes = {n: f"q{n}probe" for n, each in enumerate(messages) if _instructs(each)}
        chat = list(messages)
        for n, probe in probes.items():
            listed = isinstance(chat[n].get("content"), list)
            chat[n] = chat[n] | {"content": _parts(probe) if listed else probe}
        text = self._text(chat, options)
        return all(probe in text for probe in probes.values())

    def _with_parts(self, messages: list[Message]) -> list[Message]:
        """Returns the messages, with texts as lists of parts where it reads only these."""
        if not self._only_parts:
            return messages
        return [each | {"content": _parts(each.get("content", ""))} for each in messages]

    def _shows_calls(self, *names: str, **fields: str) -> bool:
        """Returns whether it shows a message with calls of these names and with further fields."""
        style, results = self.calls, [_RESULT] * len(names)
        return style is not None and self._shows(
            [_USER, _calling(style, *names) | fields, *results], *names, *fields.values()
        )

    def _shows(self, messages: list[Message], *probes: str) -> bool:
        return all(probe in self._text(messages) for probe in probes)

    def _text(self, messages: list[Message], options: Mapping[str, Any] | None = None) -> str:
        """Returns the text of some messages; empty if the template refuses them."""
        return self._try(self._with_parts(messages), options)

    def _try(self, messages: list[Message], options: Mapping[str, Any] | None = None) -> str:
        try:
            return self._render(messages, options or {})
        except Exception:  # a template may raise anything
            return ""


def _instructs(message: Message) -> bool:
    return message["role"] in _INSTRUCTIONS


def _thinks(content: str) -> bool:
    """Returns whether an answer begins with thoughts that end: else it may speak of the mark."""
    return content.lstrip().startswith(THINK) and END_OF_THINK in content


def _calling(style: CallStyle, *names: str) -> Message:
    arguments: Any = {_TWO: _THREE}
    if not style.objects:
        arguments = json.dumps(arguments)
    functions = [{"name": name, "arguments": arguments} for name in names]
    calls = [{"id": _ID, "type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": style.empty, "tool_calls": calls}


def _saying(message: Mapping[str, Any]) -> Message:
    """A copy of a message without fields that say nothing: templates ask whether they are there."""
    copy = {
        name: value
        for name, value in message.items()
        if name == "content" or not (value is None or value == [] or value == {})
    }
    silent = copy["role"] in ("assistant", "tool") and "tool_calls" not in copy
    if silent and copy.get("content") is None:
        copy["content"] = ""
    return copy


def _first_together(messages: list[Message]) -> list[Message]:
    """Moves instructions to the beginning, as one message, and into the user's turns."""
    first = list(takewhile(_instructs, messages))
    content = reduce(_joined, (message.get("content") for message in first), None)
    begin = [message | {"content": content} for message in first[:1]]
    return begin + _moved(messages[len(first) :])


def _moved(messages: list[Message]) -> list[Message]:
    """Returns the messages with instructions as parts of the user's next turns; where the next turn
    is not the user's, of the last one, or as a turn."""
    result: list[Message] = []
    waiting = None  # instructions for the next turn
    for message in (*messages, None):
        if message is not None and _instructs(message):
            waiting = _joined(waiting, message.get("content"))
            continue
        if waiting and message is not None and message["role"] == "user":
            message = message | {"content": _joined(waiting, message.get("content"))}
        elif waiting:
            follows = bool(result) and result[-1]["role"] == "user"
            turn = result.pop() if follows else {"role": "user"}
            result.append(turn | {"content": _joined(turn.get("content"), waiting)})
        waiting = None
        if message is not None:
            result.append(message)
    return result


def _joined(first: Any, second: Any) -> Any:
    """Both contents, with a blank line between them."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts("\n\n"), *_parts(second)]


def _parts(content: Any) -> Any:
    """Returns a text as a list of parts, and other contents as they are."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
