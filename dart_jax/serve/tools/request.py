"""Tools that a client offers: what the model is told of them, and the grammar of its calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs, json_grammar, literal
from dart_jax.serve.body.errors import bad
from dart_jax.serve.body.fields import ChatFields, Function
from dart_jax.serve.tools.formats import HERMES, ToolFormat, format_of
from dart_jax.serve.tools.parameters import Parameters
from dart_jax.serve.tools.reader import CallReader
from dart_jax.serve.tools.xml_grammar import XmlArguments, in_lark, without
from dart_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Tools:
    """Tools that an answer may call.

    Attributes:
      functions: what they are.
      described: all that are offered, as a chat template reads them.
      format: of calls.
      must: whether the answer has to call one, rather than to choose.
      parallel: whether it may have several calls.
      marks: marks of the format that are single tokens -> their ids.
    """

    functions: tuple[Function, ...]
    described: list[dict[str, Any]]
    format: ToolFormat
    must: bool
    parallel: bool
    marks: Mapping[str, int]

    @classmethod
    def of(cls, fields: ChatFields, tokenizer: Tokenizer) -> Tools | None:
        """Returns the tools of a request, or None if its answer cannot call any.

        Raises:
          ApiError: a tool is asked for that is not there.
          UserError: the request names a chat template that does not exist.
        """
        choice = fields.tool_choice
        functions = tuple(tool.function for tool in fields.tools)
        names = [function.name for function in functions]
        if len(set(names)) < len(names):
            raise bad("tools have two functions of the same name; rename one", "tools")
        for name in choice.names or ():
            if name not in names:
                message = f"tool_choice asks for {name!r:.100}, which is not among the tools"
                raise bad(message, "tool_choice")
        if choice.mode == "required" and not names:
            raise bad("tool_choice is required, but there are no tools; pass some", "tool_choice")
        if not names or choice.mode == "none":
            return None
        for each in functions:
            kind = (each.parameters or {}).get("type", "object")
            if "object" not in (kind if isinstance(kind, list) else [kind]):
                message = f"the parameters of {each.name} must be an object's, not a {kind!r:.50}"
                raise bad(message, "tools")
        if choice.names is not None:
            functions = tuple(each for each in functions if each.name in choice.names)
        described = [tool.model_dump(exclude_unset=True) for tool in fields.tools]
        options = {**fields.template_options, "tools": described}
        format = format_of(tokenizer.template_for(options)) or HERMES
        tokens = tokenizer.backend.get_added_tokens_decoder()
        ids = {each.content: id for id, each in tokens.items() if each.content in format.marks}
        return cls(
            functions,
            described,
            format,
            choice.mode != "auto",
            fields.parallel_tool_calls and choice.mode != "function",
            ids,
        )

    def reader(self) -> CallReader:
        """Returns a reader of an answer."""
        tools = {each.name: Parameters(each.parameters) for each in self.functions}
        return CallReader(self.format, tools, parallel=self.parallel, must=self.must)

    def holds(self, answer: StructuredOutputs | None) -> bool:
        """Returns True if a text has a structure. It may be anything where all tools may be called
        and none is strict.

        Args:
          answer: the structure of a text that calls no tool, or None if that may be anything.
        """
        some = len(self.functions) < len(self.described) or any(x.strict for x in self.functions)
        return self.must or answer is not None or some

    def size(self, answer: StructuredOutputs | None) -> int:
        """Returns the bytes of all schemas that a text has to follow; `answer` as in `holds`."""
        schemas = [StructuredOutputs(json=self._schema(each)) for each in self.functions]
        return sum(each.size for each in (*schemas, *([] if answer is None else [answer])))

    def outputs(self, answer: StructuredOutputs | None) -> StructuredOutputs:
        """Returns the structure of a text that calls tools, or is an answer; see `holds`.

        Raises:
          UserError: a schema cannot be used, or the structure is not JSON.
        """
        other = None
        if answer is not None and not self.must:
            schema = {"type": "object"} if answer.json_object else answer.json
            if schema is None:
                raise UserError(
                    "with tools there can be JSON only; use a JSON schema, or leave out one of them"
                )
            other = json_grammar(schema, compact=answer.disable_any_whitespace)
        return StructuredOutputs(grammar=self._grammar(other))

    def _grammar(self, answer: str | None) -> str:
        """Returns it in llguidance's Lark; `answer`: the JSON of a text that calls no tool."""
        calls = " | ".join(f"call_{n}" for n in range(len(self.functions)))
        rules = [f"call: {calls}"]
        for n, function in enumerate(self.functions):
            head, tail = self._lark(self.format.head(function.name)), self._lark(self.format.tail)
            schema_of = self._schema(function)
            if self.format.is_xml:
                arguments = XmlArguments(self.format, self.marks, n, schema_of)
                rules += [f"call_{n}: {head} {arguments.body} {tail}", *arguments.rules]
            else:
                rules.append(f"call_{n}: {head} %json {json_grammar(schema_of)} {tail}")
        before, between, after = map(self._lark, self.format.pieces)
        more = f"({between} call)*" if self.parallel else ""
        rules.append(f"calls: {before} call {more} {after}")
        if self.must:
            rules.append("start: calls")
        elif answer is not None:
            rules += ["start: calls | answer", f"answer: %json {answer}"]
        else:
            rules += self._text_rules()
        return "\n".join(["%llguidance {}", *rules])

    def _schema(self, function: Function) -> Mapping[str, Any]:
        """Returns the schema of a function's arguments, where the answer has to follow it."""
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
        text = f"TEXT: {without(self.format.begins)}"
        return [f"start: group{more} TEXT", group, mark, text]

    def _lark(self, text: str) -> str:
        return in_lark(text, self.marks)
