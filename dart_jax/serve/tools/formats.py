"""Formats in which families of models write calls of tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """Text by which a model calls tools: with their arguments as JSON, or as XML, which has a pair
    of marks around each argument. There, texts are written as they are, other values as JSON.

    Attributes:
      begin: marks a call, or several in a list; empty where an answer that begins with a brace is
        one.
      end: ends it; may be empty.
      space: between them and what they enclose.
      between: between calls.
      listed: whether one `begin` is followed by a list of all calls, rather than each by one.
      arguments: key of the arguments; empty where the name precedes a bare object.
      name_begin, name_end: in XML, around the name of the tool; both may be empty.
      key_begin, key_end: around the name of a parameter; empty for JSON.
      value_begin, value_end: around its value; the first may be empty.
      value_space: between them and the value; no part of it.
      close: ends the arguments; may be empty.
      line: between marks.
    """

    begin: str = ""
    end: str = ""
    space: str = ""
    between: str = ""
    listed: bool = False
    arguments: str = "arguments"
    name_begin: str = ""
    name_end: str = ""
    key_begin: str = ""
    key_end: str = ""
    value_begin: str = ""
    value_end: str = ""
    value_space: str = ""
    close: str = ""
    line: str = ""

    @property
    def is_xml(self) -> bool:
        """Whether arguments are XML."""
        return bool(self.key_begin)

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may be tokens."""
        inner = (self.key_begin, self.key_end, self.value_begin, self.value_end, self.close)
        return tuple(mark for mark in (self.begin, self.end, *inner) if len(mark) > 1)

    @property
    def begins(self) -> tuple[str, ...]:
        """Marks with which a call may begin after any text; in XML, some models leave out the
        first one."""
        return tuple(filter(None, (self.begin, self.name_begin)))

    @property
    def ends(self) -> tuple[str, ...]:
        """Marks that end a value in XML; some models leave out its own."""
        return tuple(filter(None, (self.value_end, self.key_begin, self.close, self.end)))

    @property
    def pieces(self) -> tuple[str, str, str]:
        """Texts before all calls, between two of them, and after the last one."""
        first, last = self.begin + self.space, self.space + self.end
        if self.listed:
            return f"{first}[", ", ", f"]{last}"
        return first, last + self.between + first, last

    def head(self, name: str) -> str:
        """Returns the text before the arguments of a call."""
        if self.is_xml:
            return self.name_begin + name + self.name_end + self.line
        if not self.arguments:
            return f"{name}[ARGS]"
        return f'{{"name": {json.dumps(name)}, "{self.arguments}": '

    @property
    def tail(self) -> str:
        """The text after the arguments."""
        return self.close if self.is_xml or not self.arguments else "}"

    @property
    def opening(self) -> str:
        """In XML, the text between the name of a parameter and its value."""
        between = self.line + self.value_begin if self.value_begin else ""
        return self.key_end + between + self.value_space

    def body(self, arguments: Any) -> str:
        """Returns the text of the arguments."""
        if not self.is_xml:
            return json.dumps(arguments, ensure_ascii=False)
        text, after = "", self.value_space + self.value_end + self.line
        for name, value in arguments.items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            text += self.key_begin + name + self.opening + written + after
        return text

    def write(self, calls: Iterable[tuple[str, Any]]) -> str:
        """Writes calls, each a name and arguments, or the text of these."""
        before, between, after = self.pieces
        texts = [
            self.head(name) + (given if isinstance(given, str) else self.body(given)) + self.tail
            for name, given in calls
        ]
        return before + between.join(texts) + after


# That of Hermes, Qwen and SmolLM; also for models whose chat template knows no tools.
HERMES = ToolFormat("<tool_call>", "</tool_call>", "\n", between="\n")
LLAMA = ToolFormat(arguments="parameters", between="; ")
QWEN_XML = ToolFormat(
    "<tool_call>",
    "</tool_call>",
    "\n",
    between="\n",
    name_begin="<function=",
    name_end=">",
    key_begin="<parameter=",
    key_end=">",
    value_end="</parameter>",
    value_space="\n",
    close="</function>",
    line="\n",
)
GLM = ToolFormat(
    "<tool_call>",
    "</tool_call>",
    between="\n",
    key_begin="<arg_key>",
    key_end="</arg_key>",
    value_begin="<arg_value>",
    value_end="</arg_value>",
    line="\n",
)

# Text in a chat template -> the format that the model was trained for, the first that is found.
_BY_TEMPLATE: Mapping[str, ToolFormat | None] = {
    "[ARGS]": ToolFormat("[TOOL_CALLS]", arguments=""),
    "[TOOL_CALLS]": ToolFormat("[TOOL_CALLS]", listed=True),
    "<|tool_call|>": ToolFormat("<|tool_call|>", "<|/tool_call|>", listed=True),
    "<seed:tool_call>": dataclasses.replace(
        QWEN_XML, begin="<seed:tool_call>", end="</seed:tool_call>", value_space=""
    ),
    "<parameter=": QWEN_XML,
    "</arg_key><arg_value>": dataclasses.replace(GLM, between="", line=""),
    "<arg_key>": GLM,
    "<function=": None,  # with arguments that are none of these
    "<tool_call>": HERMES,
    "<|python_tag|>": LLAMA,
    '"parameters": dictionary of argument name': LLAMA,
}


def format_of(template: str) -> ToolFormat | None:
    """Returns the format that a chat template, given by its source, teaches, or None if it teaches
    none that is known."""
    if "tools" not in template:
        return None
    return next((format for mark, format in _BY_TEMPLATE.items() if mark in template), None)
