"""Hostile grammars: deep, long, wide, recursive and exponential ones, which a server must bear."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

# Definitions, and a schema that may use them, as JSON, since Python writes none that is so deep.
_Schema = tuple[Mapping[str, Any], str]


class Hostile(NamedTuple):
    """A request with a hostile grammar: what it is, and where and what to send."""

    name: str
    path: str
    content: str


def hostile_requests(count: int, seed: int, *, chats: bool) -> list[Hostile]:
    """Returns `count` different requests of random sizes in random order, equally many of all
    families.

    Args:
      count: how many.
      seed: of their choice.
      chats: whether some are chats with tools, for which the target needs a template.
    """
    rng = np.random.default_rng(seed)
    families = [
        (kind, name, family) for kind, named in _FAMILIES.items() for name, family in named.items()
    ]
    found: dict[str, Hostile] = {}
    turns = itertools.cycle(families)
    while len(found) < count:
        kind, name, (low, high, grammar) = next(turns)
        size = round(math.exp(rng.uniform(math.log(low), math.log(high))))
        fields = [field for field in _FIELDS[kind] if chats or "tools" not in field]
        field = fields[int(rng.integers(len(fields)))]
        if kind == "schema":
            # Tools and most clients have an object at the top, but any schema may be there.
            written = _whole(*grammar(size), inside="tools" in field or rng.random() < 0.5)
        else:
            written = json.dumps(grammar(size))
        if "STRING" in field:
            written = json.dumps(written)
        content = field.replace("STRING", written).replace("GRAMMAR", written)
        chat = "messages" in field
        path = "/v1/chat/completions" if chat else "/v1/completions"
        found.setdefault(content, Hostile(f"{kind}, {name}, {size:,}", path, content))
    every = list(found.values())
    return [every[n] for n in rng.permutation(count)]


def _whole(definitions: Mapping[str, Any], schema: str, *, inside: bool) -> str:
    """A schema with its definitions, as that of a property of an object or at the top, as JSON."""
    if inside:
        schema = f'{{"type": "object", "properties": {{"v": {schema}}}, "required": ["v"]}}'
    return f'{{"$defs": {json.dumps(definitions)}, {schema[1:]}' if definitions else schema


def _chain(count: int, link: Callable[[Any], Any]) -> _Schema:
    """Definitions, each of which has the next one."""
    links = {f"d{n}": link(_ref(n + 1)) for n in range(count)}
    return {**links, f"d{count}": {"type": "boolean"}}, json.dumps(_ref(0))


def _ring(count: int) -> _Schema:
    """Definitions that are the next one, and the last one is the first."""
    return {f"d{n}": _ref((n + 1) % count) for n in range(count)}, json.dumps(_ref(0))


def _every(count: int) -> _Schema:
    """Definitions, each of which has all of them."""
    lists = [{"type": "array", "items": _ref(n)} for n in range(count)]
    return {f"d{n}": {"anyOf": [{"const": n}, *lists]} for n in range(count)}, json.dumps(_ref(0))


def _nested(begin: str, inside: str, end: str) -> Callable[[int], _Schema]:
    return lambda n: ({}, begin * n + inside + end * n)


def _flat(**schema: Any) -> _Schema:
    return {}, json.dumps(schema)


def _ref(number: int) -> dict[str, Any]:
    return {"$ref": f"#/$defs/d{number}"}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _named(count: int, **schema: Any) -> dict[str, Any]:
    return {f"p{n}": schema for n in range(count)}


_SCHEMAS: dict[str, tuple[int, int, Callable[[int], _Schema]]] = {
    "references in a row": (10, 5000, lambda n: _chain(n, lambda ref: ref)),
    "objects in a row": (10, 3000, lambda n: _chain(n, lambda ref: _object(a=ref))),
    "lists in a row": (10, 3000, lambda n: _chain(n, _list)),
    "choices in a row": (10, 3000, lambda n: _chain(n, lambda ref: {"anyOf": [{"const": 1}, ref]})),
    "references in a ring": (1, 500, _ring),
    "all in all": (2, 60, _every),
    "the whole in itself": (1, 500, lambda n: _flat(allOf=[{"$ref": "#"}] * n)),
    "doubled parts": (2, 60, lambda n: _chain(n, lambda ref: {"allOf": [ref, ref]})),
    "doubled choices": (2, 60, lambda n: _chain(n, lambda ref: {"anyOf": [ref, _list(ref)]})),
    "doubled exclusive choices": (2, 60, lambda n: _chain(n, lambda r: {"oneOf": [r, _list(r)]})),
    "doubled parts of choices": (
        2, 60, lambda n: _chain(n, lambda r: {"allOf": [{"anyOf": [r, {"type": "null"}]}] * 2})
    ),
    "doubled properties": (2, 200, lambda n: _chain(n, lambda ref: _object(a=ref, b=ref))),
    "nested objects": (10, 20_000, _nested('{"type":"object","properties":{"a":', "{}", "}}")),
    "nested lists": (10, 20_000, _nested('{"type":"array","items":', "{}", "}")),
    "nested choices": (10, 20_000, _nested('{"anyOf":[{"type":"null"},', "{}", "]}")),
    "nested parts": (10, 20_000, _nested('{"allOf":[', '{"type":"string"}', "]}")),
    "many properties": (100, 5000, lambda n: _flat(**_object(**_named(n, type="integer")))),
    "many required properties": (
        100, 5000, lambda n: _flat(**_object(**_named(n)), required=[*_named(n)])
    ),
    "many values": (100, 50_000, lambda n: _flat(enum=[f"value {i}" for i in range(n)])),
    "a long value": (1000, 500_000, lambda n: _flat(const="v" * n)),
    "many choices": (100, 3000, lambda n: _flat(anyOf=[_object(a={"const": i}) for i in range(n)])),
    "many exclusive choices": (
        10, 1000, lambda n: _flat(oneOf=[{"const": f"value {i}"} for i in range(n)])
    ),
    "many parts": (10, 2000, lambda n: _flat(allOf=[_object(**{f"p{i}": {}}) for i in range(n)])),
    "many items": (100, 5000, lambda n: _flat(type="array", prefixItems=[{"type": "null"}] * n)),
    "a long list": (10, 10**9, lambda n: _flat(**_list({"const": 1}), minItems=n, maxItems=2 * n)),
    "a long string": (10, 10**9, lambda n: _flat(type="string", minLength=n, maxLength=2 * n)),
    "long lists of long lists": (
        10, 30_000, lambda n: _chain(4, lambda ref: {**_list(ref), "maxItems": n})
    ),
    "counted patterns": (2, 1000, lambda n: _flat(type="string", pattern=_counted("x", n))),
    "patterns at once": (
        2, 300, lambda n: _flat(type="string", allOf=[{"pattern": f"{c}.{{{n}}}$"} for c in "abcd"])
    ),
    "many patterns of names": (
        2, 500, lambda n: _flat(patternProperties={f"a.{{0,{i}}}b": {} for i in range(n)})
    ),
    "small numbers": (2, 300, lambda n: _flat(type="number", minimum=0, exclusiveMaximum=10.0**-n)),
    "multiples": (2, 10**9, lambda n: _flat(type="integer", multipleOf=n, minimum=n)),
}  # fmt: skip


def _counted(of: str, count: int) -> str:
    return f"({of}{{1,{count}}}){{1,{count}}}"


_REGEXES: dict[str, tuple[int, int, Callable[[int], str]]] = {
    "counted counts": (2, 1000, lambda n: _counted("x", n)),
    "far back": (5, 2000, lambda n: f"(a|b)*a(a|b){{{n}}}"),
    "nested stars": (2, 5000, lambda n: "(" * n + "a" + ")*" * n),
    "nested groups": (10, 50_000, lambda n: "(" * n + "a" + ")" * n),
    "nested counts": (2, 60, lambda n: "(" * n + "a" + "){2}" * n),
    "many words": (10, 50_000, lambda n: "|".join(f"word{i}" for i in range(n))),
    "optional letters": (5, 5000, lambda n: "a?" * n + "a" * n),
    "classes squared": (2, 1000, lambda n: _counted(r"(\p{L}|[\p{Lo}\p{N}]{2,9})", n)),
    "anything between": (5, 2000, lambda n: ".*".join("abc"[i % 3] for i in range(n))),
    "a long word": (1000, 500_000, lambda n: "word " * (n // 5)),
    "any case": (1000, 100_000, lambda n: "(?i)" + "straße" * (n // 6)),
    "overlapping words": (5, 300, lambda n: f"({'|'.join('a' * i for i in range(1, n))})*b"),
}

_CHOICES: dict[str, tuple[int, int, Callable[[int], list[str]]]] = {
    "many": (10, 50_000, lambda n: [f"choice {i}" for i in range(n)]),
    "long": (1000, 1_000_000, lambda n: ["x" * n]),
    "beginnings": (10, 1000, lambda n: ["x" * i for i in range(1, n)]),
}


def _rules(rule: str, count: int, last: str = '"z"') -> str:
    """Rules in GBNF, of which each has the next one, `{0}`."""
    rules = [f"r{n} ::= {rule.format(f'r{n + 1}')}" for n in range(count)]
    return "\n".join(["root ::= r0", *rules, f"r{count} ::= {last}"])


def _lark(name: str, rule: str, count: int) -> str:
    """The same in Lark, of rules or terminals of this name."""
    rules = [f"{name}{n}: {rule.format(f'{name}{n + 1}')}" for n in range(count)]
    return "\n".join([f"start: {name}0", *rules, f'{name}{count}: "z"'])


def _terminals(count: int) -> str:
    """Terminals in Lark that all begin alike."""
    every = [f"T{n}: /[a-z]{{{n + 1}}}x*/" for n in range(count)]
    return "\n".join([f"start: ({' | '.join(f'T{n}' for n in range(count))})*", *every])


_GRAMMARS: dict[str, tuple[int, int, Callable[[int], str]]] = {
    "rules in a row": (10, 20_000, lambda n: _rules('"a" {0} | "b"', n)),
    "doubled rules": (2, 200, lambda n: _rules("{0} {0}", n)),
    "doubled choices": (2, 200, lambda n: _rules('"a" {0} | "a" {0} "b" | {0}', n)),
    "rules in a ring": (1, 2000, lambda n: _rules("{0}", n, "root")),
    "left recursion": (1, 2000, lambda n: "root ::= root " + '"a" ' * n + '| "a"'),
    "hidden left recursion": (1, 2000, lambda n: _rules('"a"? {0}', n, 'root "b" | "c"')),
    "ambiguous": (1, 300, lambda n: "root ::= root " + "root " * n + '| "a"'),
    "ambiguous and empty": (1, 300, lambda n: "root ::= root " + "root " * n + '| ""'),
    "nested groups": (10, 20_000, lambda n: "root ::= " + "(" * n + '"a"' + ")" * n),
    "nested repetition": (2, 5000, lambda n: "root ::= " + "(" * n + '"a"' + ")*" * n),
    "long repetition": (10, 10**9, lambda n: f'root ::= "a"{{{n}}}'),
    "repeated repetition": (2, 30_000, lambda n: "root ::= " + _counted('"a"', n)),
    "many choices": (10, 20_000, lambda n: "root ::= " + "|".join(f'"c{i}"' for i in range(n))),
    "many classes": (10, 5000, lambda n: "root ::= " + "[a-z]+ " * n),
    "many options": (10, 5000, lambda n: "root ::= " + '"a"? ' * n),
    "a long word": (1000, 500_000, lambda n: 'root ::= "' + "word " * (n // 5) + '"'),
    "Lark: rules in a row": (10, 20_000, lambda n: _lark("r", '"a" {0} | "b"', n)),
    "Lark: doubled terminals": (2, 60, lambda n: _lark("T", "{0} {0}", n)),
    "Lark: counted counts": (2, 1000, lambda n: f"start: T T\nT: /{_counted('x', n)}/"),
    "Lark: many terminals": (2, 2000, _terminals),
    "Lark: ambiguous": (1, 300, lambda n: "start: s\ns: s " + "s " * n + '| "a"'),
}

_FAMILIES: dict[str, Mapping[str, tuple[int, int, Callable[[int], Any]]]] = {
    "schema": _SCHEMAS,
    "regex": _REGEXES,
    "choice": _CHOICES,
    "grammar": _GRAMMARS,
}


def _fields(*names: str) -> list[str]:
    return [f'{{"prompt": "a", "max_tokens": 4, {name}}}' for name in names]


def _tools(strict: str, choice: str) -> str:
    function = f'{{"name": "f", "strict": {strict}, "parameters": GRAMMAR}}'
    return (
        '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "tool_choice": '
        f'"{choice}", "tools": [{{"type": "function", "function": {function}}}]}}'
    )


# Bodies of requests by kind of grammar, which stands for GRAMMAR, or as a string for STRING.
_FIELDS = {
    "schema": [
        *_fields(
            '"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": '
            "GRAMMAR}}",
            '"json_schema": GRAMMAR',
            '"json_schema": STRING',
            '"guided_json": STRING',
            '"structured_outputs": {"json": GRAMMAR}',
        ),
        _tools("false", "required"),
        _tools("true", "auto"),
    ],
    "regex": _fields(
        '"regex": GRAMMAR', '"guided_regex": GRAMMAR', '"structured_outputs": {"regex": GRAMMAR}'
    ),
    "choice": _fields('"guided_choice": GRAMMAR', '"structured_outputs": {"choice": GRAMMAR}'),
    "grammar": _fields(
        '"grammar": GRAMMAR',
        '"ebnf": GRAMMAR',
        '"guided_grammar": GRAMMAR',
        '"structured_outputs": {"grammar": GRAMMAR}',
    ),
}
