"""Contents of messages, of which only text is supported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dart_jax.serve.body.errors import bad


def only_texts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages whose contents are one text each: of several parts, of what was refused, or
    of nothing. Raises ApiError if there are none, or as `joined`."""
    if not messages:
        raise bad("messages must not be empty", "messages")
    return [_only_text(message, place) for place, message in enumerate(messages)]


def _only_text(message: dict[str, Any], place: int) -> dict[str, Any]:
    content = message.get("content")
    if message.get("function_call"):
        said = f"messages.{place}.function_call is of an earlier API; send it as one of tool_calls"
        raise bad(said, "messages", "unsupported_parameter")
    if content is None and message.get("role") in ("assistant", "tool"):
        return {**message, "content": message.get("refusal") or ""}
    where = f"messages.{place}.content"
    if not isinstance(content, str | list | None):
        raise bad(f"{where} must be a text or a list of parts", "messages")
    if not isinstance(content, list):
        return message
    return {**message, "content": joined(content, where, ["text", "refusal"])}


def joined(parts: Sequence[Any], where: str, kinds: Sequence[str]) -> str:
    """Returns the text of a content in several parts.

    Args:
      parts: of the content.
      where: its place in the body, from the field on.
      kinds: types that parts may have.

    Raises:
      ApiError: a part is none of these.
    """
    texts: list[str] = []
    for part in parts:
        part = part if isinstance(part, Mapping) else {}
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in kinds or not isinstance(text, str):
            message = f"{where} has a part of type {kind!r:.50}; only text is supported"
            raise bad(message, where.partition(".")[0], "unsupported_parameter")
        texts.append(text)
    return "\n".join(texts)
