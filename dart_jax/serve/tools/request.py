"""Tools that a client offers: what the model is told of them, and the grammar of its calls."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs, json_grammar, literal
from dart_jax.serve.errors import bad
from dart_jax.serve.fields import ChatFields, Function
from dart_jax.serve.tools.formats import HERMES, ToolFormat, format_of
from dart_jax.serve.tools.reader import ToolCallReader
from dart_jax.text.tokenizer import Tokenizer

_PROMPT = """You can call functions. Each line between <tools> and </tools> describes one:
<tools>
{}
</tools>
To call one, write its name and its arguments as JSON:
<tool_call>
{{"name": ..., "arguments": {{...}}}}
</tool_call>"""


@dataclasses.dataclass(frozen=True)
class Tools:
    """The tools that an answer may call.

    Attributes:
      functions: what they are.
      described: all that are offered, as a chat template reads them.
      format: of calls.
      must: whether the answer has to call one, rather than to choose.
      parallel: whether it may have several calls.
      marks: marks of the format that are single tokens -> their ids.
      special: whether one of them is a special token, which texts leave out otherwise.
    """

    functions: tuple[Function, ...]
    described: list[dict[str, Any]]
    format: ToolFormat
    must: bool
    parallel: bool
    marks: Mapping[str, int]
    special: bool

    @classmethod
    def of(cls, fields: ChatFields, tokenizer: Tokenizer) -> Tools | None:
        """Returns the tools of a request; None if its answer cannot call any.

        Raises:
          ApiError: a tool is asked for that is not there.
          UserError: the request names a chat template that does not exist.
        """
        choice = fields.tool_choice
        functions = tuple(tool.function for tool in fields.tools)
        names = [function.name for function in functions]
        if len(set(names)) < len(names):
            raise bad("tools have two functions of the same name; rename one", "tools")
        named = None if isinstance(choice, str) else choice["function"]["name"]
        if named is not None and named not in names:
            message = f"tool_choice asks for {named!r:.100}, which is not among the tools"
            raise bad(message, "tool_choice")
        if choice == "required" and not names:
            raise bad("tool_choice is required, but there are no tools; pass some", "tool_choice")
        if not names or choice == "none":
            return None
        for each in functions:
            kind = (each.parameters or {}).get("type", "object")
            if "object" not in (kind if isinstance(kind, list) else [kind]):
                message = f"the parameters of {each.name} must be an object's, not a {kind!r:.50}"
                raise bad(message, "tools")
        if named is not None:
            functions = tuple(each for each in functions if each.name == named)
        described = [tool.model_dump(exclude_unset=True) for tool in fields.tools]
        options = {**fields.chat_template_kwargs, "tools": described}
        format = format_of(tokenizer.template_for(options)) or HERMES
        ids = {mark: tokenizer.backend.token_to_id(mark) for mark in (format.begin, format.end)}
        ids = {mark: id for mark, id in ids.items() if id is not None}
        return cls(
            functions,
            described,
            format,
            choice != "auto",
            fields.parallel_tool_calls and named is None,
            ids,
            not tokenizer.special_ids.isdisjoint(ids.values()),
        )

    def reader(self) -> ToolCallReader:
        """Returns a reader of an answer."""
        names = {function.name for function in self.functions}
        return ToolCallReader(self.format, names, parallel=self.parallel, must=self.must)

    def outputs(self, answer: StructuredOutputs | None) -> StructuredOutputs | None:
        """Returns the structure of a text that calls tools, or is an answer.

        Args:
          answer: the structure of one that calls none; None if that may be any text.

        Returns:
          None if the text may be anything, as where no tool is strict.

        Raises:
          UserError: a schema cannot be used, or the structure is not JSON.
        """
        schema = None
        if answer is not None and not self.must:
            schema = {"type": "object"} if answer.json_object else answer.json
            if schema is None:
                raise UserError(
                    "beside tools there can be JSON only; use a JSON schema, or leave out one of "
                    "them"
                )
        source = self._grammar(schema)
        return None if source is None else StructuredOutputs(grammar=source)

    def _grammar(self, schema: Mapping[str, Any] | bool | str | None) -> str | None:
        """The same in llguidance's Lark."""
        if not self.must and schema is None and not any(each.strict for each in self.functions):
            return None
        calls = " | ".join(f"call_{n}" for n in range(len(self.functions)))
        rules = [f"call: {calls}"]
        for n, function in enumerate(self.functions):
            head, tail = self._lark(self.format.head(function.name)), self._lark(self.format.tail)
            arguments = json_grammar(self._schema(function))
            rules.append(f"call_{n}: {head} %json {arguments} {tail}")
        before, between, after = map(self._lark, self.format.pieces)
        more = f"({between} call)*" if self.parallel else ""
        rules.append(f"calls: {before} call {more} {after}")
        if self.must:
            rules.append("start: calls")
        elif schema is not None:
            rules += ["start: calls | answer", f"answer: %json {json_grammar(schema)}"]
        else:
            rules += self._text_rules()
        return "\n".join(["%llguidance {}", *rules])

    def _schema(self, function: Function) -> Mapping[str, Any]:
        """The schema of a function's arguments, where the answer has to follow it."""
        if not (self.must or function.strict):
            return {"type": "object"}
        return {**(function.parameters or {"properties": {}}), "type": "object"}

    def _text_rules(self) -> list[str]:
        """Rules of an answer with any text around its calls."""
        begin, more = self.format.begin, "*" if self.parallel else "?"
        if not begin:
            return [r"start: calls | TEXT", r"TEXT: /(\s*[^\s{](.|\n)*)?/"]
        # After the mark of a call, which ends the text before it, must follow the rest of a call.
        first, between, last = self.format.pieces
        rest = first.removeprefix(begin)
        others = f"({self._lark(between)} call)*" if self.format.listed and self.parallel else ""
        if begin in self.marks:
            mark = f"mark: TEXT {self._lark(begin)}"
        else:
            mark = f"mark[lazy]: TEXT {literal(begin)}"
        group = f"group: mark {self._lark(rest)} call {others} {self._lark(last)}"
        return [f"start: group{more} TEXT", group, mark, r"TEXT: /(.|\n)*/"]

    def _lark(self, text: str) -> str:
        """A text in Lark, in which marks are tokens."""
        for mark, id in self.marks.items():
            before, found, after = text.partition(mark)
            if found:
                return f"{self._lark(before)} <[{id}]> {self._lark(after)}"
        return literal(text) if text else ""


def with_tools(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    tools: Tools | None,
) -> tuple[list[Mapping[str, Any]], list[dict[str, Any]] | None]:
    """Returns messages in which the chat template finds calls and their results, and the tools that
    it reads. Where it knows no tools, all of this becomes text.

    Args:
      tokenizer: has the template.
      messages: each content is a text or null.
      options: of the template.
      tools: that the answer may call.

    Raises:
      ApiError: a call is none.
      UserError: there is no such template.
    """
    described = None if tools is None else tools.described
    native = format_of(tokenizer.template_for({**options, "tools": described})) is not None
    result: list[Mapping[str, Any]] = []
    for place, message in enumerate(messages):
        calls = _calls(message.get("tool_calls"), place)
        if native:
            if calls:
                message = {**message, "tool_calls": calls}
            result.append(message)
        else:
            _add_as_text(result, message, calls)
    if native:
        return result, described
    if described is not None:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in described)
        text, first = _PROMPT.format(lines), result[0] if result else {}
        if first.get("role") == "system":
            result[0] = {**first, "content": f"{first.get('content')}\n\n{text}"}
        else:
            result.insert(0, {"role": "system", "content": text})
    return result, None


def _calls(calls: Any, place: int) -> list[dict[str, Any]]:
    """The calls of a message, with their arguments as objects."""
    if not isinstance(calls, list | None):
        raise bad(f"messages.{place}.tool_calls must be a list", "messages")
    result = []
    for call in calls or []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad(f"messages.{place}.tool_calls has one without a function's name", "messages")
        arguments = function.get("arguments") or "{}"
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            json.dumps(arguments)  # as it is done later
        except (RecursionError, ValueError):
            arguments = None
        if not isinstance(arguments, Mapping):
            message = f"messages.{place}.tool_calls has arguments that are no JSON object"
            raise bad(message, "messages")
        result.append({**call, "function": {**function, "arguments": arguments}})
    return result


def _add_as_text(
    result: list[Mapping[str, Any]], message: Mapping[str, Any], calls: list[dict[str, Any]]
) -> None:
    """Adds a message without calls and results, which become text."""
    content = message.get("content")
    if calls:
        pairs = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        content = "\n".join(filter(None, (content, HERMES.write(pairs))))
    message = {key: value for key, value in message.items() if key != "tool_calls"}
    if message.get("role") != "tool":
        result.append({**message, "content": content})
        return
    content = f"<tool_response>\n{content}\n</tool_response>"
    if result and result[-1].get("tool_results"):  # templates want roles to alternate
        content = f"{result.pop()['content']}\n{content}"
    result.append({"role": "user", "content": content, "tool_results": True})
