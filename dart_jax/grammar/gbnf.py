"""llama.cpp's GBNF as llguidance's Lark.

A text is split into lexemes as long as they can be there, which is not how GBNF splits it: so
expressions become lexemes only where that makes no difference; see `lexemes.py`.
"""

from __future__ import annotations

import json
import re

from dart_jax.grammar.lexemes import Node, with_lexemes

_ESCAPE = r'\\x[0-9A-Fa-f]{2} | \\u[0-9A-Fa-f]{4} | \\U[0-9A-Fa-f]{8} | \\[trn"\\\[\]-]'
_PIECE = re.compile(
    rf"""(?P<head>([A-Za-z0-9_-]++)\s*+::=) | (?P<name>[A-Za-z0-9_-]+)
    | "(?P<text>(?:{_ESCAPE} | [^"\\])*+)" | \[(?P<set>(?:{_ESCAPE} | [^]\\])*+)\]
    | (?P<token><[^<>\s]+> | !<\[\d+\]>) | (?P<times>[*+?] | \{{\s*\d*\s*(?:,\s*\d*\s*)?\}})
    | (?P<sign>[().|]) | (?P<space>\s+ | \#[^\n]*)""",
    re.DOTALL | re.VERBOSE,
)
_CHARACTER = rf"(?:{_ESCAPE} | .)"
_RANGE = re.compile(f"({_CHARACTER})(?: -({_CHARACTER}))?", re.DOTALL | re.VERBOSE)
_ESCAPES = {r"\t": "\t", r"\r": "\r", r"\n": "\n"}


def is_lark(grammar: str) -> bool:
    """Returns True if a grammar is in llguidance's Lark, rather than in GBNF."""
    return re.search(r"(?m)^[ \t]*(%llguidance\b|[?!]*start[ \t]*:(?!:))", grammar) is not None


def lark_of(grammar: str) -> str:
    """Returns a grammar in GBNF in llguidance's Lark.

    Raises:
      RecursionError: it is nested too deep.
      ValueError: it is wrong.
    """
    rules = _Parser(grammar).rules
    numbers = {name: number for number, name in enumerate(rules)}
    expressions: dict[Node, int] = {}
    used: dict[str, None] = {}  # rules that lexemes refer to

    def write(node: Node, within: bool) -> str:
        """Writes a part of a rule, or of something within a lexeme."""
        kind, value = node[:2]
        if kind == "lexeme":
            return f"L{expressions.setdefault(value, len(expressions))}"
        if kind == "ref":
            if within:
                used[value] = None
            return f"{'R' if within else 'r'}{numbers[value]}"
        if kind == "rep":
            least, most = node[2:]
            times = f"{{{least},{'' if most is None else most}}}"
            return f"({write(value, within)}){times}" if most != 0 else '""'
        if kind in ("seq", "alt"):
            parts = [write(part, within) for part in value] or ['""']
            return f"({(' ' if kind == 'seq' else ' | ').join(parts)})"
        return _written(value, *node[2:]) if kind == "chars" else value

    lines = ["%llguidance {}", f"start: r{numbers['root']}"]
    for name, rule in with_lexemes(rules).items():
        lines.append(f"r{numbers[name]}: {write(rule, False)}")
    lines += [f"L{number}: {write(each, True)}" for each, number in [*expressions.items()]]
    written = 0
    while written < len(used):
        name = [*used][written]
        lines.append(f"R{numbers[name]}: {write(rules[name], True)}")
        written += 1
    return "\n".join(lines)


def _written(ranges: tuple[tuple[int, int], ...], negated: bool) -> str:
    """Characters in Lark."""
    if not ranges and negated:
        return "/(?s:.)/"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not negated:
        return json.dumps(chr(ranges[0][0]))
    texts = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)
    return f"/[{'^' if negated else ''}{texts}]/"


class _Parser:
    """Reads GBNF.

    Attributes:
      rules: by name; of two with the same name, the last.
    """

    def __init__(self, grammar: str):
        self._grammar = grammar
        self._pieces = self._split()
        self._references = {"root"}
        self.rules: dict[str, Node] = {}
        while self._pieces:
            piece = self._pieces.pop()
            if piece.lastgroup != "head":
                raise self._wrong("there must be a rule", piece.start())
            self.rules[piece[2]] = self._alternatives()
        for name in self._references - self.rules.keys():
            raise ValueError(f"there is no rule {name!r:.100}")

    def _split(self) -> list[re.Match[str]]:
        """Returns all pieces, the first one last."""
        pieces, place = list[re.Match[str]](), 0
        while place < len(self._grammar):
            piece = _PIECE.match(self._grammar, place)
            if piece is None:
                raise self._wrong("this is no part of a rule", place)
            place = piece.end()
            if piece["space"] is None:
                pieces.append(piece)
        return pieces[::-1]

    def _wrong(self, why: str, place: int) -> ValueError:
        line = self._grammar.count("\n", 0, place) + 1
        return ValueError(f"{why}, in line {line} at {self._grammar[place : place + 20]!r}")

    def _alternatives(self) -> Node:
        """Reads to the end of a rule or a group."""
        alternatives = [self._sequence()]
        while self._pieces and self._pieces[-1]["sign"] == "|":
            self._pieces.pop()
            alternatives.append(self._sequence())
        return alternatives[0] if len(alternatives) == 1 else ("alt", tuple(alternatives))

    def _sequence(self) -> Node:
        parts = list[Node]()
        while self._pieces and self._pieces[-1][0] not in ("|", ")"):
            if self._pieces[-1].lastgroup == "head":
                break
            piece = self._pieces.pop()
            if piece["times"] is None:
                parts.append(self._part(piece))
            elif not parts:
                raise self._wrong("there is nothing to repeat", piece.start())
            else:
                parts[-1] = ("rep", parts[-1], *self._times(piece))
        return parts[0] if len(parts) == 1 else ("seq", tuple(parts))

    def _part(self, piece: re.Match[str]) -> Node:
        kind, value = piece.lastgroup, piece[piece.lastgroup or 0]
        if kind == "name":
            self._references.add(value)
            return "ref", value
        if kind == "token":
            return "token", value if value[0] == "<" else f"<[^{value[3:]}"
        if kind == "set":
            ranges = _RANGE.findall(value.removeprefix("^"))
            if not ranges:  # as for llama.cpp
                return "seq", ()
            codes = tuple(
                (self._code(first, piece), self._code(last or first, piece))
                for first, last in ranges
            )
            if any(first > last for first, last in codes):
                raise self._wrong("a range goes backwards", piece.start())
            return "chars", codes, value.startswith("^")
        if kind == "text":
            found = re.findall(_CHARACTER, value, re.DOTALL | re.VERBOSE)
            codes = (self._code(character, piece) for character in found)
            chars = tuple(("chars", ((code, code),), False) for code in codes)
            return chars[0] if len(chars) == 1 else ("seq", chars)
        if value == ".":
            return "chars", (), True
        node = self._alternatives()
        if value != "(" or not self._pieces or self._pieces.pop()[0] != ")":
            raise self._wrong("there is no ')' for the '('", piece.start())
        return node

    def _times(self, piece: re.Match[str]) -> tuple[int, int | None]:
        sign = piece["times"]
        if sign in "*+?":
            return int(sign == "+"), 1 if sign == "?" else None
        least, comma, most = (x.strip() for x in sign[1:-1].partition(","))
        if (not least and not most) or max(len(least), len(most)) > 9:
            raise self._wrong("this is no number of times", piece.start())
        count = int(least or 0)
        limit = count if not comma else int(most) if most else None
        if limit is not None and limit < count:
            raise self._wrong("the most times are fewer than the least", piece.start())
        return count, limit

    def _code(self, character: str, piece: re.Match[str]) -> int:
        """The number of a character, which may be escaped."""
        if len(character) > 2:
            code = int(character[2:], 16)
        else:
            code = ord(_ESCAPES.get(character, character[-1]))
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:  # half a surrogate pair, or no code
            raise self._wrong(f"{character!a} is no character", piece.start())
        return code
