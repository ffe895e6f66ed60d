"""llama.cpp's GBNF as llguidance's Lark.

A text is split into lexemes as long as they can be there, which is not how GBNF splits it: so
expressions become lexemes only where that makes no difference; see `lexemes.py`.
"""

from __future__ import annotations

import json
import re

from dart_jax.grammar.lexemes import Node, Ranges, lexemes, merged

_PIECE = re.compile(
    r"""(?P<head>(?P<rule>[A-Za-z0-9_-]++)\s*+::=) | (?P<name>[A-Za-z0-9_-]+)
    | "(?P<text>(?:\\.|[^"\\])*+)" | \[(?P<set>(?:\\.|[^]\\])*+)\]
    | (?P<token>!?<[^<>\s]+>) | (?P<times>[*+?] | \{\s*\d*\s*(?:,\s*\d*\s*)?\})
    | (?P<sign>[().|]) | (?P<space>\s+ | \#[^\n]*)""",
    re.DOTALL | re.VERBOSE,
)
_CHARACTER = re.compile(
    r"""\\x(?P<x>[0-9A-Fa-f]{2}) | \\u(?P<u>[0-9A-Fa-f]{4}) | \\U(?P<U>[0-9A-Fa-f]{8})
    | \\(?P<escape>[trn"\\[\]-]) | (?P<plain>[^\\])""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}

# All characters: those below and above the halves of surrogate pairs.
_ALL = ((0, 0xD7FF), (0xE000, 0x10FFFF))


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
    left, expressions = lexemes(rules)
    used: list[str] = []  # rules that lexemes refer to

    def write(node: Node, within: bool) -> str:
        """A part of a rule, or of something within a lexeme."""
        kind, value = node[:2]
        if kind == "ref" and within:
            used.append(value)
        if kind in ("lexeme", "ref"):
            name = "L" if kind == "lexeme" else "R" if within else "r"
            return f"{name}{value if kind == 'lexeme' else numbers[value]}"
        if kind == "rep":
            least, most = node[2:]
            times = f"{{{least},{'' if most is None else most}}}"
            return f"({write(value, within)}){times}" if most != 0 else '""'
        if kind in ("seq", "alt"):
            parts = [write(part, within) for part in value] or ['""']
            return f"({(' ' if kind == 'seq' else ' | ').join(parts)})"
        return _written(value) if kind == "chars" else value

    lines = ["%llguidance {}", f"start: r{numbers['root']}"]
    lines += [f"r{numbers[name]}: {write(rule, False)}" for name, rule in left.items()]
    lines += [f"L{number}: {write(each, True)}" for number, each in enumerate(expressions)]
    seen = set[str]()
    while used:
        if (name := used.pop()) not in seen:
            seen.add(name)
            lines.append(f"R{numbers[name]}: {write(rules[name], True)}")
    return "\n".join(lines)


def _written(ranges: Ranges) -> str:
    """Characters in Lark."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return json.dumps(chr(ranges[0][0]))
    return "/[" + "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges) + "]/"


class _Parser:
    """Reads GBNF.

    Attributes:
      rules: by name; of two with the same name, the last.
    """

    def __init__(self, grammar: str):
        self._grammar, self._place = grammar, 0
        self.rules: dict[str, Node] = {}
        references: list[str] = []
        piece = self._next()
        while piece is not None:
            if piece.lastgroup != "head":
                raise self._wrong("there must be a rule", piece)
            name = piece["rule"]
            self.rules[name], piece = self._alternatives(references)
            if piece is not None and piece["sign"] == ")":
                raise self._wrong("there is no '(' for the ')'", piece)
        for name in ["root", *references]:
            if name not in self.rules:
                raise ValueError(f"there is no rule {name!r:.100}")

    def _next(self) -> re.Match[str] | None:
        """The next piece; None at the end."""
        while self._place < len(self._grammar):
            piece = _PIECE.match(self._grammar, self._place)
            if piece is None:
                raise self._wrong("this is no part of a rule")
            self._place = piece.end()
            if piece["space"] is None:
                return piece
        return None

    def _wrong(self, why: str, piece: re.Match[str] | None = None) -> ValueError:
        place = self._place if piece is None else piece.start()
        line = self._grammar.count("\n", 0, place) + 1
        return ValueError(f"{why}, in line {line} at {self._grammar[place : place + 20]!r}")

    def _alternatives(self, references: list[str]) -> tuple[Node, re.Match[str] | None]:
        """Reads to the end of a rule or a group; returns it, and the piece that ends it."""
        alternatives: list[Node] = []
        parts: list[Node] = []
        times = False  # whether the last part may be repeated
        while True:
            piece = self._next()
            kind = None if piece is None else piece.lastgroup
            if piece is None or kind == "head" or piece["sign"] in ("|", ")"):
                alternatives.append(parts[0] if len(parts) == 1 else ("seq", tuple(parts)))
                parts, times = [], False
                if piece is None or piece["sign"] != "|":
                    whole = ("alt", tuple(alternatives))
                    return alternatives[0] if len(alternatives) == 1 else whole, piece
            elif kind == "times":
                if not times:
                    raise self._wrong("there is nothing to repeat", piece)
                parts[-1] = ("rep", parts[-1], *self._times(piece))
            else:
                parts.append(self._part(piece, references))
                times = True

    def _part(self, piece: re.Match[str], references: list[str]) -> Node:
        kind = piece.lastgroup
        if kind == "name":
            references.append(piece["name"])
            return "ref", piece["name"]
        if kind == "text":
            codes = self._characters(piece["text"], piece)
            chars = [("chars", ((code, code),)) for _, code in codes]
            return chars[0] if len(chars) == 1 else ("seq", tuple(chars))
        if kind == "set":
            return self._set(piece)
        if kind == "token":
            token = piece["token"]
            if token.startswith("!"):
                if not re.fullmatch(r"!<\[\d+\]>", token):
                    raise self._wrong(
                        "a token that may not come must be a number, as !<[5]>", piece
                    )
                token = f"<[^{token[3:]}"
            return "token", token
        if piece["sign"] == ".":
            return "chars", _ALL
        node, end = self._alternatives(references)
        if end is None or end["sign"] != ")":
            raise self._wrong("there is no ')' for the '('", piece)
        return node

    def _times(self, piece: re.Match[str]) -> tuple[int, int | None]:
        sign = piece["times"]
        if sign in "*+?":
            return int(sign == "+"), 1 if sign == "?" else None
        least, comma, most = (x.strip() for x in sign[1:-1].partition(","))
        if (not least and not most) or max(len(least), len(most)) > 9:
            raise self._wrong("this is no number of times", piece)
        count = int(least or 0)
        limit = count if not comma else int(most) if most else None
        if limit is not None and limit < count:
            raise self._wrong("the most times are fewer than the least", piece)
        return count, limit

    def _characters(self, source: str, piece: re.Match[str]) -> list[tuple[bool, int]]:
        """The characters of a text or a set, and whether each is written as it is."""
        codes, place = list[tuple[bool, int]](), 0
        while place < len(source):
            found = _CHARACTER.match(source, place)
            if found is None:
                raise self._wrong(f"{source[place : place + 2]} is no character", piece)
            place = found.end()
            kind = found.lastgroup or ""
            value = found[kind]
            code = int(value, 16) if kind in "xuU" else ord(_ESCAPES.get(value, value))
            if kind == "plain":
                code = ord(value)
            if not any(a <= code <= b for a, b in _ALL):
                raise self._wrong(f"{found[0]!a} is no character", piece)
            codes.append((kind == "plain", code))
        return codes

    def _set(self, piece: re.Match[str]) -> Node:
        source = piece["set"]
        codes = self._characters(source.removeprefix("^"), piece)
        ranges, place = list[tuple[int, int]](), 0
        while place < len(codes):
            first = last = codes[place][1]
            place += 1
            if place + 1 < len(codes) and codes[place] == (True, ord("-")):
                last = codes[place + 1][1]
                place += 2
            if last < first:
                raise self._wrong("a range goes backwards", piece)
            ranges.append((first, last))
        if not ranges:  # as for llama.cpp
            return "seq", ()
        chars = _without(ranges) if source.startswith("^") else merged(ranges)
        # Halves of surrogate pairs are no characters.
        chars = [(max(a, c), min(b, d)) for a, b in chars for c, d in _ALL if a <= d and c <= b]
        if not chars:
            raise self._wrong("no character is allowed", piece)
        return "chars", tuple(chars)


def _without(ranges: list[tuple[int, int]]) -> Ranges:
    """All other characters."""
    edges = [x for first, last in merged(ranges) for x in (first - 1, last + 1)]
    pairs = zip([0, *edges[1::2]], [*edges[::2], _ALL[-1][1]], strict=True)
    return tuple((first, last) for first, last in pairs if first <= last)
