"""Messages of a chat, as data sets spell them.

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
    "assistant": ("gpt", "chatgpt", "bing", "bard", "bot", "ai", "assistant", "model"),
    "system": ("system",),
    "developer": ("developer",),
    "tool": ("tool", "function", "observation", "tool_response"),
}
ROLES = {name: role for role, names in _SPEAKERS.items() for name in names}
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_SPEECH = ("content", "value", "text")
_LEARNED = ("train", "training", "loss", "weight")
_UNREAD = {
    "function_call": "write it as `tool_calls`",
    "train_detail": "learn a turn as a whole, or not",
    "training_detail": "learn a turn as a whole, or not",
} | dict.fromkeys(MEDIA, "only text is read")


class Chat(NamedTuple):
    """Messages for a chat template.

    Attributes:
      messages: each with a `role`, a `content`, and what else the template may read.
      tools: for the template, if there are any.
      unlearned: indices of the assistant's turns that are not to be learned.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    unlearned: tuple[int, ...] = ()


def read_messages(turns: Any, name: str) -> Chat:
    """Reads a list of messages, the same as JSON, or a list of texts, of which the user's is first;
    raises UserError if the field `name` is no such list, or a message is malformed."""
    turns = parsed(turns)
    if not isinstance(turns, list) or not turns:
        what = "empty" if turns == [] else kind(turns)
        raise UserError(f"`{name}` must be a list of messages, not {what}")
    if all(isinstance(turn, str) for turn in turns):
        return Chat(alternating(turns))
    pairs = [_message(turn, f"`{name}`, message {n}") for n, turn in enumerate(turns, 1)]
    unlearned = tuple(n for n, (_, learned) in enumerate(pairs) if not learned)
    return Chat([message for message, _ in pairs], None, unlearned)


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
    speaker = _taken(turn, ("role", "from"), name)
    role = ROLES.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        roles = ", ".join(ROLES)
        raise UserError(f"{name} has the unknown role {speaker!r}; the roles are {roles}")
    content = _taken(turn, _SPEECH, name)
    if isinstance(content, list):
        content = "".join(_part(part, name) for part in content)
    if calls := parsed(turn.pop("tool_calls", None)):
        turn["tool_calls"] = calls
    if content is None and (calls or turn.get("reasoning_content") or turn.get("thinking")):
        content = ""
    if not isinstance(content, str):
        raise UserError(f"{name} has no text as its content")
    learned = _taken(turn, _LEARNED, name)
    if learned not in (None, 0, 1):
        raise UserError(f"{name} must have 0 or 1 as its {' or '.join(_LEARNED)}, not {learned!r}")
    if learned and role != "assistant":
        raise UserError(f"{name} is to be learned, but only the assistant's turns are")
    return {**turn, "role": role, "content": content}, role != "assistant" or learned != 0


def _taken(turn: dict[str, Any], names: tuple[str, ...], name: str) -> Any:
    """Takes the one of several fields that a message has, or None."""
    values = {key: turn.pop(key) for key in names if key in turn}
    if len(values) > 1:
        raise UserError(f"{name} has {' and '.join(f'`{key}`' for key in values)}; leave one")
    return next(iter(values.values()), None)


def _part(part: Any, name: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        what = part.get("type", list(part)) if isinstance(part, dict) else kind(part)
        raise UserError(f"{name} holds something other than text: {what}")
    return part["text"]
