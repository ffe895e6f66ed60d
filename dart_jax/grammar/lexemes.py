"""Lexemes of grammars of characters.

llguidance reads a text in lexemes: regular expressions, each of which takes as many characters as
it can. A grammar of characters may mean less: after `[a-z]*` may come a `z`. Here its rules are
split into lexemes for which this makes no difference: whatever may follow one begins with a
character that cannot continue it, nor another lexeme that begins alike. Single characters always
do, but are slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

# A part of a rule: ("chars", ((first, last), ...)), ("seq", parts), ("alt", parts),
# ("rep", part, least, most or None), ("ref", name of a rule), ("token", in Lark), or
# ("lexeme", number), which `lexemes` puts in.
Node = tuple[Any, ...]
Ranges = tuple[tuple[int, int], ...]

# Characters of an expression, written out, and states of all expressions, that are looked at.
_MOST_CHARACTERS, _MOST_STATES = 2_000, 4_000


def lexemes(rules: Mapping[str, Node]) -> tuple[dict[str, Node], list[Node]]:
    """Splits rules into lexemes.

    Args:
      rules: by name, with one called `root`.

    Returns:
      The rules that are left, with lexemes by number, and the lexemes, which may refer to rules
      that are in no circle.
    """
    sizes = _sizes(rules)
    if "root" in sizes:
        return {"root": ("lexeme", 0)}, [rules["root"]]
    split: set[Node] = set()
    while True:
        folding = _Folding(rules, sizes, split)
        wrong = _Reading(folding, rules).wrong()
        if not wrong:
            return folding.rules, folding.lexemes
        split |= wrong


def _sizes(rules: Mapping[str, Node]) -> dict[str, int]:
    """Regular rules, which neither lead back to themselves nor have tokens -> characters of their
    expression, written out."""
    uses = {name: _references(rule) for name, rule in rules.items()}
    users = defaultdict[str, list[str]](list)
    for name, used in uses.items():
        for other in used - {"<>"}:
            users[other].append(name)
    sizes: dict[str, int] = {}
    ready = [name for name, used in uses.items() if not used]
    while ready:
        name = ready.pop()
        sizes[name] = _size(rules[name], sizes)
        for user in users[name]:
            uses[user].discard(name)
            if not uses[user]:
                ready.append(user)
    return sizes


def _references(node: Node) -> set[str]:
    """The rules that a part refers to; `<>` for a token."""
    kind = node[0]
    if kind == "ref":
        return {node[1]}
    if kind in ("seq", "alt"):
        return set().union(*map(_references, node[1]))
    return {"<>"} if kind == "token" else _references(node[1]) if kind == "rep" else set()


def _size(node: Node, sizes: Mapping[str, int]) -> int:
    """Characters of an expression, written out, at most one more than are looked at; minus one if
    it is not regular."""
    kind = node[0]
    if kind == "chars":
        return 1
    if kind == "ref":
        return sizes.get(node[1], -1)
    if kind == "token":
        return -1
    if kind == "rep":
        one = _size(node[1], sizes)
        return one if one < 0 else min(one * max(node[2], node[3] or 1), _MOST_CHARACTERS + 1)
    every = [_size(part, sizes) for part in node[1]]
    return -1 if -1 in every else min(sum(every), _MOST_CHARACTERS + 1)


class _Folding:
    """Rules with lexemes for regular expressions.

    Attributes:
      rules: all that are reached.
      lexemes: each once.
    """

    def __init__(self, rules: Mapping[str, Node], sizes: Mapping[str, int], split: set[Node]):
        """Does it; `split`: expressions that are no lexemes."""
        self._sizes, self._split = sizes, split
        self._numbers: dict[Node, int] = {}
        self.rules: dict[str, Node] = {}
        self._todo = ["root"]
        while self._todo:
            name = self._todo.pop()
            if name not in self.rules:
                self.rules[name] = self._fold(rules[name])
        self.lexemes = [*self._numbers]

    def _fold(self, node: Node) -> Node:
        kind = node[0]
        if self._is_lexeme(node):
            return "lexeme", self._numbers.setdefault(node, len(self._numbers))
        if kind == "ref":
            self._todo.append(node[1])
        if kind in ("ref", "token"):
            return node
        if kind == "rep":
            return "rep", self._fold(node[1]), *node[2:]
        if kind == "alt" or _size(node, self._sizes) >= 0:
            return kind, tuple(map(self._fold, node[1]))
        runs: list[list[Node]] = []
        for part in node[1]:
            if runs and min(_size(part, self._sizes), _size(runs[-1][-1], self._sizes)) >= 0:
                runs[-1].append(part)
            else:
                runs.append([part])
        return kind, tuple(
            self._fold(run[0] if len(run) == 1 else ("seq", tuple(run))) for run in runs
        )

    def _is_lexeme(self, node: Node) -> bool:
        if node[0] == "chars":
            return True
        return 0 <= _size(node, self._sizes) <= _MOST_CHARACTERS and node not in self._split


class _Reading:
    """How lexemes are read: an automaton of the characters of all of them (Glushkov's)."""

    def __init__(self, folding: _Folding, rules: Mapping[str, Node]):
        self._rules, self._lexemes = rules, folding.lexemes
        self._chars: list[Ranges] = []  # by character of an expression
        self._of: list[int] = []  # its lexeme
        self._next: list[set[int]] = []  # characters that may come after it
        self._start, self._ends = set[int](), set[int]()  # first and last characters
        self._begin: list[Ranges] = []  # with what a lexeme may begin
        self._empty: list[bool] = []  # whether a lexeme may be empty
        for number, lexeme in enumerate(self._lexemes):
            empty, first, last = self._add(lexeme, number)
            self._ends |= last
            self._start |= first
            self._begin.append(merged([each for place in first for each in self._chars[place]]))
            self._empty.append(empty)
        self._after = self._characters_after(folding.rules)

    def _add(self, node: Node, number: int) -> tuple[bool, set[int], set[int]]:
        """Adds an expression; returns whether it may be empty, its first and its last
        characters."""
        kind = node[0]
        if kind == "ref":
            return self._add(self._rules[node[1]], number)
        if kind == "chars":
            self._chars.append(node[1])
            self._of.append(number)
            self._next.append(set())
            place = {len(self._chars) - 1}
            return False, place, place
        if kind == "alt":
            every = [self._add(part, number) for part in node[1]]
            first = set[int]().union(*(begin for _, begin, _ in every))
            last = set[int]().union(*(end for _, _, end in every))
            return any(each[0] for each in every), first, last
        if kind == "seq":
            empty, first, last = True, set[int](), set[int]()
            for part in node[1]:
                nothing, begin, end = self._add(part, number)
                self._lead(last, begin)
                first = first | begin if empty else first
                last = last | end if nothing else end
                empty = empty and nothing
            return empty, first, last
        _, part, least, most = node
        empty, first, last, before = least == 0, set[int](), set[int](), set[int]()
        for n in range(max(least, most or 1)):
            if most == 0:
                break
            nothing, begin, end = self._add(part, number)
            self._lead(before, begin)
            first = first or begin
            empty, before = empty or nothing, end
            last = last | end if n + 1 >= least or nothing else set()
        if most is None:
            self._lead(before, begin)
        return empty, first, last

    def _lead(self, ones: set[int], others: set[int]) -> None:
        for one in ones:
            self._next[one] |= others

    def _characters_after(self, rules: Mapping[str, Node]) -> list[Ranges]:
        """The characters that may follow each lexeme."""
        first: dict[str, Ranges] = dict.fromkeys(rules, ())
        after: dict[str, Ranges] = dict.fromkeys(rules, ())
        follow: list[Ranges] = [()] * len(self._lexemes)
        empty: set[str] = set()

        def begins(node: Node) -> tuple[bool, Ranges]:
            """Whether a part may be empty, and the characters with which it may begin."""
            kind, value = node[:2]
            if kind == "lexeme":
                return self._empty[value], self._begin[value]
            if kind == "ref":
                return value in empty, first[value]
            if kind == "token":
                return False, ()
            if kind == "rep":
                nothing, found = begins(value)
                return nothing or node[2] == 0, found
            every = list[tuple[bool, Ranges]]()
            for part in value:
                every.append(begins(part))
                if kind == "seq" and not every[-1][0]:
                    break
            nothing = (all if kind == "seq" else any)(may for may, _ in every)
            return nothing, merged([one for _, found in every for one in found])

        def visit(node: Node, behind: Ranges) -> None:
            """Notes what may follow a part, given what may follow the whole."""
            kind, value = node[:2]
            if kind == "lexeme":
                follow[value] = merged([*follow[value], *behind])
            elif kind == "ref":
                after[value] = merged([*after[value], *behind])
            elif kind == "rep":
                visit(value, behind if node[3] == 1 else merged([*behind, *begins(value)[1]]))
            elif kind == "alt":
                for part in value:
                    visit(part, behind)
            elif kind == "seq":
                for part in reversed(value):
                    visit(part, behind)
                    may, found = begins(part)
                    behind = merged([*behind, *found]) if may else found

        before = None
        while before != (before := (dict(first), len(empty))):
            for name, rule in rules.items():
                may, found = begins(rule)
                first[name] = merged([*first[name], *found])
                empty |= {name} if may else set()
        before = None
        while before != (before := (dict(after), [*follow])):
            for name, rule in rules.items():
                visit(rule, after[name])
        return follow

    def wrong(self) -> set[Node]:
        """Lexemes that may take a character which something else begins with; none if there are
        none."""
        found, seen = set[int](), set[frozenset[int]]()
        todo = [(frozenset[int](), frozenset(self._start))]
        while todo:
            here, ahead = todo.pop()
            for number in {self._of[place] for place in here & self._ends}:
                found |= {
                    self._of[place]
                    for place in ahead
                    if _overlap(self._chars[place], self._after[number])
                }
            edges = sorted(
                {x for place in ahead for a, b in self._chars[place] for x in (a, b + 1)}
            )
            for edge in edges:
                taken = frozenset(
                    p for p in ahead if any(a <= edge <= b for a, b in self._chars[p])
                )
                further = frozenset().union(*(self._next[place] for place in taken))
                if taken and taken not in seen:
                    seen.add(taken)
                    todo.append((taken, further))
            if len(seen) > _MOST_STATES:
                return {lexeme for lexeme in self._lexemes if lexeme[0] != "chars"}
        return {self._lexemes[number] for number in found}


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters, in order."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return tuple(result)


def _overlap(ones: Ranges, others: Ranges) -> bool:
    return any(a <= d and c <= b for a, b in ones for c, d in others)
