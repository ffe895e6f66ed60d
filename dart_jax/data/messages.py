"""The messages of a chat, as data sets spell them.

| | |
|---|---|
| who speaks | `role` or `from`, with any of the names in `ROLES` |
| what is said | `content`, `value` or `text`: a string, or a list of parts of text |
| what is not to be learned | the assistant's turns with `train`, `training`, `loss` or `weight` 0 |
| anything else | `tool_calls`, `name`, `reasoning_content`, ..: for the chat template, as it is |

Refused by name: images and the like, `function_call`, other weights, and parts of a turn to learn.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from dart_jax.data.records import kind
from dart_jax.errors import UserError

_SPEAKERS = {
    "user": ("human", "user"),
    "assistant": (
        *("gpt", "chatgpt", "bing", "bard", "bot", "ai", "assistant", "model"),
        *("function_call", "tool_call"),
    ),
    "system": ("system",),
    "developer": ("developer",),
    "tool": ("tool", "function", "observation", "tool_response"),
}
ROLES = {name: role for role, names in _SPEAKERS.items() for name in names}
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_CALLS = ("function_call", "tool_call")  # roles whose text is a tool call, or several, as JSON
_SPEECH = ("content", "value", "text")
_LEARNED = ("train", "training", "loss", "weight")
_UNREAD = {
    "function_call": "write it as `tool_calls`",
    "train_detail": "learn a turn as a whole, or not",
    "training_detail": "learn a turn as a whole, or not",
} | dict.fromkeys(MEDIA, "only text is read")


class Messages(NamedTuple):
    """Messages for a chat template.

    Attributes:
      messages: each with a `role`, a `content`, and what else the template may read.
      unlearned: indices of the assistant's turns that are not to be learned.
    """

    messages: list[dict[str, Any]]
    unlearned: tuple[int, ...] = ()


def read_messages(turns: Any, name: str) -> Messages:
    """Reads a list of messages, the same as JSON, or a list of texts, of which the user's is first.

    Instead of a list of objects it may be an object of lists, as `datasets` stores some columns.

    Args:
      turns: the list.
      name: its field, for errors.

    Raises:
      UserError: it is no such list, or a message is malformed.
    """
    turns = parsed(turns)
    columns = list(turns.values()) if isinstance(turns, dict) else []
    if columns and all(isinstance(each, list) and len(each) == len(columns[0]) for each in columns):
        turns = [dict(zip(turns, each, strict=True)) for each in zip(*columns, strict=True)]
    if not isinstance(turns, list) or not turns:
        what = "empty" if turns == [] else kind(turns)
        raise UserError(f"`{name}` must be a list of messages, not {what}")
    if all(isinstance(turn, str) for turn in turns):
        return Messages(alternating(turns))
    pairs = [_message(turn, f"`{name}`, message {n}") for n, turn in enumerate(turns, 1)]
    unlearned = tuple(n for n, (_, learned) in enumerate(pairs) if not learned)
    return Messages([message for message, _ in pairs], unlearned)


def is_messages(value: Any) -> bool:
    """Returns whether a value is a list whose elements say who speaks."""
    return isinstance(value, list) and all(
        isinstance(each, dict) and ("role" in each or "from" in each) for each in value
    )


def alternating(turns: list[str]) -> list[dict[str, Any]]:
    """Assigns texts to user and assistant alternately; the user begins."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": cleaned(turn)} for n, turn in enumerate(turns)]


def parsed(value: Any) -> Any:
    """Returns the list or object of a string that holds one as JSON; other values as they are."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return value


def cleaned(value: Any) -> Any:
    """Replaces unpaired surrogates, which JSON can hold and tokenizers reject."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [cleaned(each) for each in value]
        case dict():
            return {cleaned(name): cleaned(each) for name, each in value.items()}
    return value


def _message(turn: Any, name: str) -> tuple[dict[str, Any], bool]:
    """Returns a message, and whether it is to be learned, if it is the assistant's."""
    if not isinstance(turn, dict):
        raise UserError(f"{name} must be an object, not {kind(turn)}")
    turn = {key: cleaned(value) for key, value in turn.items() if value is not None}
    for key, cure in _UNREAD.items():
        if turn.pop(key, None):
            raise UserError(f"{name}: `{key}` is not supported; {cure}")
    speaker, other = turn.pop("role", None), turn.pop("from", None)
    speaker = other if speaker is None else speaker
    role = _role(speaker)
    if _role(other) not in (None, role):
        raise UserError(f"{name} has the role {speaker!r} and is from {other!r}; leave one")
    content = _content(turn, name)
    calls = parsed(turn.pop("tool_calls", None)) or None
    if isinstance(speaker, str) and speaker.lower() in _CALLS:
        content, calls = "", _calls(content, name)
    if role is None:
        roles = ", ".join(ROLES)
        raise UserError(f"{name} has the unknown role {speaker!r}; the roles are {roles}")
    if calls is not None:
        turn["tool_calls"] = calls
    if content is None and (calls or turn.get("reasoning_content") or turn.get("thinking")):
        content = ""
    if not isinstance(content, str):
        raise UserError(f"{name} has no text as its content")
    learned = _learned(turn, role, name)
    return {**turn, "role": role, "content": content}, learned


def _role(speaker: Any) -> str | None:
    return ROLES.get(speaker.lower()) if isinstance(speaker, str) else None


def _content(turn: dict[str, Any], name: str) -> Any:
    """Takes what is said from a message: a text, or something else."""
    values = {key: turn.pop(key) for key in _SPEECH if key in turn}
    contents = [
        "".join(_part(part, name) for part in value) if isinstance(value, list) else value
        for value in values.values()
    ]
    if contents and contents.count(contents[0]) < len(contents):
        raise UserError(f"{name} has {' and '.join(f'`{key}`' for key in values)}; leave one")
    return contents[0] if contents else None


def _part(part: Any, name: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        what = part.get("type", list(part)) if isinstance(part, dict) else kind(part)
        raise UserError(f"{name} holds something other than text: {what}")
    return part["text"]


def _calls(content: Any, name: str) -> list[dict[str, Any]]:
    """Returns the tool calls that a text holds."""
    calls = parsed(content)
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and {"name", "arguments"} <= call.keys() for call in calls
    ):
        raise UserError(f"{name} must be a tool call as JSON, with a name and arguments")
    return [{"type": "function", "function": call} for call in calls]


def _learned(turn: dict[str, Any], role: str, name: str) -> bool:
    """Takes what says whether a message is to be learned."""
    values = {key: turn.pop(key) for key in _LEARNED if key in turn}
    for key, value in values.items():
        if value not in (0, 1):
            raise UserError(f"{name}: `{key}` must be 0 or 1, not {value!r}")
        if value and role != "assistant":
            raise UserError(
                f"{name}: `{key}` is {value!r} for the role {role}, but only the assistant's turns "
                "are learned; leave it out"
            )
    if len(set(values.values())) > 1:
        raise UserError(f"{name}: {' and '.join(values)} contradict each other")
    return role != "assistant" or all(values.values())
