"""Limits of the structures that clients may ask for, and their measures.

Nothing here calls itself, and all of it takes time in proportion to what the client sent.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dart_jax.errors import UserError
from dart_jax.grammar.gbnf import is_lark
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.grammar.schemas import Reached, parts


@dataclasses.dataclass(frozen=True)
class GrammarLimits:
    """Limits of a structure.

    Attributes:
      source_bytes: size of what the client wrote.
      depth: of references and parts within parts; see `reference_depth`.
      seconds: of a core, to compile it.
    """

    source_bytes: int = 64_000
    depth: int = 200
    seconds: float = 5.0

    def check_size(self, kind: str, size: int) -> None:
        """Raises UserError if the schemas or the grammar of a kind have too many bytes."""
        if size > self.source_bytes:
            verb, it = ("have", "them") if kind.endswith("s") else ("has", "it")
            raise UserError(
                f"{kind} {verb} {size:,} bytes, more than the {self.source_bytes:,} of "
                f"--grammar-bytes; shorten {it}"
            )

    def check_depth(self, outputs: StructuredOutputs) -> None:
        """Raises UserError if it is too deep; takes longer than `check_size`."""
        depth = reference_depth(outputs)
        if depth > self.depth:
            raise UserError(
                f"{outputs.kind} is {depth:,} levels deep, more than the {self.depth:,} of "
                "--grammar-depth; make it flatter"
            )


def source_size(outputs: StructuredOutputs) -> int:
    """Returns the number of bytes of a structure, a schema's as JSON.

    Raises:
      UserError: it is nested too deep to be written.
    """
    given = outputs.json or outputs.regex or outputs.choice or outputs.grammar or ""
    try:
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    except RecursionError:
        raise UserError(f"{outputs.kind} is nested too deep; make it flatter") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{outputs.kind} cannot be used: {error}") from None
    return len(text.encode(errors="replace"))


def reference_depth(outputs: StructuredOutputs) -> int:
    """Returns how many levels a compiler has to go down at most: parts within parts, and what they
    refer to. Where references run in a circle, all in it count.

    Raises:
      UserError: a schema is nested too deep to be read.
    """
    if outputs.json is not None:
        return _depth_of_schema(outputs.json)
    return 0 if outputs.grammar is None else _depth_of_rules(outputs.grammar)


def _depth_of_schema(schema: Mapping[str, Any] | bool | str) -> int:
    try:
        root = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    except RecursionError:
        raise UserError("the JSON schema is nested too deep; make it flatter") from None
    except (TypeError, ValueError):
        return 0  # as it will be told when it is compiled
    if not isinstance(root, dict):
        return 0
    reached = Reached(root)
    numbers = {id(each): number for number, each in enumerate(reached.schemas)}
    within: list[list[int]] = [[] for _ in numbers]
    leads: list[list[int]] = [[] for _ in numbers]
    referred = [0] * len(numbers)
    for each, its_parts, its_leads in zip(reached.schemas, within, leads, strict=True):
        its_parts += [numbers[id(part)] for part in parts(each) if isinstance(part, dict)]
        its_leads += its_parts
        if (target := numbers.get(id(reached.target(each)))) is not None:
            its_leads.append(target)
            referred[target] = 1
    return _longest(within, [1] * len(numbers)) + _longest(leads, referred)


# What a grammar is made of, as far as it matters here: by GBNF and by Lark.
_GBNF = re.compile(
    r"""(?P<head>[\w-]++)\s*+::= | (?P<name>[\w-]+) | (?P<open>\() | (?P<close>\))
    | "(?:\\.|[^"\\])*+"? | \[(?:\\.|[^]\\])*+\]? | \#[^\n]*""",
    re.DOTALL | re.VERBOSE,
)
_LARK = re.compile(
    r"""^[ \t]*[?!]*(?P<head>[\w-]++)(?:[^\n:"/()|]|"[^"\n]*")*+:(?!:) | (?P<json>%json\s*)
    | (?P<name>[\w-]+) | (?P<open>[([]) | (?P<close>[])]) | "(?:\\.|[^"\\\n])*+"?
    | (?:\#|//)[^\n]* | /(?:\\.|[^/\\\n])*+/?""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def _depth_of_rules(grammar: str) -> int:
    pieces = _LARK if is_lark(grammar) else _GBNF
    numbers: dict[str, int] = defaultdict(lambda: len(numbers))
    leads: dict[int, list[int]] = defaultdict(list)
    rule, nesting, deepest, schemas, place = numbers[""], 0, 0, 0, 0
    while found := pieces.search(grammar, place):
        place, kind = found.end(), found.lastgroup
        if kind == "head":
            rule, nesting = numbers[found["head"]], 0
        elif kind == "name":
            leads[rule].append(numbers[found["name"]])
        elif kind == "open":
            nesting += 1
            deepest = max(deepest, nesting)
        elif kind == "close":
            nesting -= 1
        elif kind == "json":
            try:
                schema, place = json.JSONDecoder().raw_decode(grammar, place)
                schemas = max(schemas, _depth_of_schema(schema))
            except RecursionError:
                raise UserError("a JSON schema is nested too deep; make it flatter") from None
            except ValueError:
                pass  # as it will be told when it is compiled
    chain = _longest([leads[number] for number in range(len(numbers))], [1] * len(numbers))
    return chain + deepest + schemas


def _longest(leads: Sequence[Sequence[int]], weights: Sequence[int]) -> int:
    """The largest weight of a path through a graph, in which a circle counts as all of its nodes.

    Finds the strongly connected components by Tarjan's algorithm, which has those that are led to
    first.
    """
    number, low = [0] * len(leads), [0] * len(leads)  # 0: not seen
    best, stack, count, result = [-1] * len(leads), list[int](), 0, 0  # -1: in no component
    for start in range(len(leads)):
        path = [] if number[start] else [(start, iter(leads[start]))]
        while path:
            node, following = path[-1]
            if not number[node]:
                count += 1
                number[node] = low[node] = count
                stack.append(node)
            for other in following:
                if not number[other]:
                    path.append((other, iter(leads[other])))
                    break
                if best[other] < 0:
                    low[node] = min(low[node], number[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    members = [stack.pop()]
                    while members[-1] != node:
                        members.append(stack.pop())
                    after = max((best[x] for each in members for x in leads[each]), default=-1)
                    weight = sum(weights[each] for each in members) + max(after, 0)
                    result = max(result, weight)
                    for each in members:
                        best[each] = weight
    return result
