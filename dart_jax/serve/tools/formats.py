"""Formats in which families of models write calls of tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """Text by which a model calls tools.

    Attributes:
      begin: marks a call, or several in a list; empty where an answer that begins with a brace is
        one.
      end: ends it; may be empty.
      space: between them and what they enclose.
      listed: whether one `begin` is followed by a list of all calls, rather than each by one.
      arguments: key of the arguments; empty where the name precedes a bare object.
      between: between calls.
    """

    begin: str = ""
    end: str = ""
    space: str = ""
    listed: bool = False
    arguments: str = "arguments"
    between: str = ""

    @property
    def pieces(self) -> tuple[str, str, str]:
        """Texts before all calls, between two of them, and after the last one."""
        first, last = self.begin + self.space, self.space + self.end
        if self.listed:
            return f"{first}[", ", ", f"]{last}"
        return first, last + self.between + first, last

    def head(self, name: str) -> str:
        """The text before the arguments of a call."""
        if not self.arguments:
            return f"{name}[ARGS]"
        return f'{{"name": {json.dumps(name)}, "{self.arguments}": '

    @property
    def tail(self) -> str:
        """The text after the arguments."""
        return "}" if self.arguments else ""

    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Writes calls, each a name and arguments."""
        before, between, after = self.pieces
        texts = [
            self.head(name) + json.dumps(arguments, ensure_ascii=False) + self.tail
            for name, arguments in calls
        ]
        return before + between.join(texts) + after


# That of Hermes, Qwen and SmolLM; also for models whose chat template knows no tools.
HERMES = ToolFormat("<tool_call>", "</tool_call>", "\n", between="\n")
LLAMA = ToolFormat(arguments="parameters", between="; ")

# Text in a chat template -> the format that the model was trained for, the first that is found.
_BY_TEMPLATE: Mapping[str, ToolFormat] = {
    "[ARGS]": ToolFormat("[TOOL_CALLS]", arguments=""),
    "[TOOL_CALLS]": ToolFormat("[TOOL_CALLS]", listed=True),
    "<|tool_call|>": ToolFormat("<|tool_call|>", "<|/tool_call|>", listed=True),
    "<tool_call>": HERMES,
    "<|python_tag|>": LLAMA,
}

# Marks in templates of formats that look like one of those, but are not JSON.
_OTHERS = ("<function=", "<arg_key>")


def format_of(template: str) -> ToolFormat | None:
    """Returns the format that a chat template, given by its source, teaches; None if it teaches
    none that is known."""
    if "tools" not in template or any(mark in template for mark in _OTHERS):
        return None
    return next((format for mark, format in _BY_TEMPLATE.items() if mark in template), None)
