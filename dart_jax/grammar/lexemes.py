"""Lexemes of grammars of characters.

llguidance reads a text in lexemes: regular expressions, each of which takes as many characters as
it can. A grammar of characters may mean less: after `[a-z]*` may come a `z`. Here its rules are
split into lexemes for which this makes no difference: all that may follow one begins with a
character that cannot continue it, nor another lexeme that begins alike. Single characters always
do, but are slow.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from typing import Any

# A part of a rule: ("chars", ((first, last), ...), whether it is all others), ("seq", parts),
# ("alt", parts), ("rep", part, least, most or None), ("ref", name of a rule), ("token", in Lark),
# or ("lexeme", part), which `with_lexemes` puts in.
Node = tuple[Any, ...]

# Whether a part may be empty, and the places of the characters with which it may begin and end.
_Ends = tuple[bool, frozenset[int], frozenset[int]]
_NOTHING: _Ends = (False, frozenset(), frozenset())

# Characters of an expression, written out, and states of all expressions, that are looked at.
_MOST_CHARACTERS, _MOST_STATES = 2_000, 4_000


def with_lexemes(rules: Mapping[str, Node]) -> dict[str, Node]:
    """Splits rules into lexemes.

    Args:
      rules: by name, with one called `root`.

    Returns:
      The rules that `root` leads to. Their lexemes may refer to rules that are in no circle.
    """
    sizes = _sizes(rules)
    if sizes.get("root", math.inf) < math.inf:
        return {"root": ("lexeme", rules["root"])}
    split: set[Node] = set()
    while True:
        folded, todo = dict[str, Node](), ["root"]
        while todo:
            if (name := todo.pop()) not in folded:
                folded[name] = _fold(rules[name], sizes, split)
                todo += _references(folded[name])
        wrong = _Reading(folded, rules).wrong()
        if not wrong:
            return folded
        split |= wrong


def _references(node: Node) -> set[str]:
    """Returns the rules that a part refers to."""
    kind, value = node[:2]
    if kind in ("seq", "alt"):
        return set().union(*map(_references, value))
    return {value} if kind == "ref" else _references(value) if kind == "rep" else set()


def _sizes(rules: Mapping[str, Node]) -> dict[str, float]:
    """Rules that do not lead back to themselves -> characters of their expression, written out;
    infinitely many if it is not regular."""
    sizes: dict[str, float] = {}
    order = TopologicalSorter({name: _references(rule) for name, rule in rules.items()})
    with contextlib.suppress(CycleError):  # all others are there nevertheless
        order.prepare()
    while ready := order.get_ready():
        sizes |= {name: _size(rules[name], sizes) for name in ready}
        order.done(*ready)
    return sizes


def _size(node: Node, sizes: Mapping[str, float]) -> float:
    """Returns the characters of a part's expression; see `_sizes`."""
    kind, value = node[:2]
    if kind in ("seq", "alt"):
        return sum(_size(part, sizes) for part in value)
    if kind == "rep":
        return _size(value, sizes) * max(node[2], node[3] or 1)
    return 1 if kind == "chars" else sizes.get(value, math.inf) if kind == "ref" else math.inf


def _fold(node: Node, sizes: Mapping[str, float], split: set[Node]) -> Node:
    """Returns a part with lexemes for regular expressions that are not to be `split`."""
    kind, value = node[:2]
    size = _size(node, sizes)
    if kind == "chars" or (size <= _MOST_CHARACTERS and node not in split):
        return "lexeme", node
    if kind in ("ref", "token"):
        return node
    if kind == "rep":
        return kind, _fold(value, sizes, split), *node[2:]
    parts = value
    if kind == "seq" and size == math.inf:
        parts = list[Node]()
        for regular, run in itertools.groupby(value, lambda part: _size(part, sizes) < math.inf):
            run = tuple(run)
            parts += [("seq", run)] if regular and len(run) > 1 else run
    return kind, tuple(_fold(part, sizes, split) for part in parts)


class _Reading:
    """How lexemes are read: an automaton of the characters of all of them (Glushkov's)."""

    def __init__(self, folded: dict[str, Node], rules: Mapping[str, Node]):
        self._rules = rules
        self._characters: list[Node] = []  # by place
        self._of: list[Node] = []  # by place, its lexeme
        self._within = defaultdict[int, set[int]](set)  # places that follow in the same lexeme
        self._after = defaultdict[int, set[int]](set)  # with which a next one may begin
        self._lexemes: dict[Node, _Ends] = {}
        self._ends = dict.fromkeys(folded, _NOTHING)
        before = None
        while before != (before := {**self._ends}):
            for name in reversed(folded):
                self._ends[name] = self._add(folded[name], None)

    def _add(self, node: Node, lexeme: Node | None) -> _Ends:
        """Notes what follows what in a part of a rule, or of a lexeme."""
        kind, value = node[:2]
        if kind == "chars":
            place = len(self._of)
            self._characters.append(node)
            self._of.append(lexeme or node)
            return False, frozenset([place]), frozenset([place])
        if kind == "token":
            return _NOTHING
        if kind == "lexeme":
            if value not in self._lexemes:
                self._lexemes[value] = self._add(value, value)
            return self._lexemes[value]
        if kind == "ref":
            return self._add(self._rules[value], lexeme) if lexeme else self._ends[value]
        follow = self._after if lexeme is None else self._within
        if kind == "rep":
            empty, first, last = self._add(value, lexeme)
            if node[3] == 0:
                return True, frozenset(), frozenset()
            for place in last if node[3] != 1 else ():
                follow[place] |= first
            return empty or node[2] == 0, first, last
        every = [self._add(part, lexeme) for part in value]
        if kind == "alt":
            empties, firsts, lasts = zip(*every, strict=True)
            return any(empties), frozenset().union(*firsts), frozenset().union(*lasts)
        empty, first, last = True, frozenset[int](), frozenset[int]()
        for nothing, begin, end in every:
            for place in last:
                follow[place] |= begin
            first = first | begin if empty else first
            last = last | end if nothing else end
            empty = empty and nothing
        return empty, first, last

    def wrong(self) -> set[Node]:
        """Lexemes that may take a character which something else begins with; none if there are
        none."""
        masks, letters = _masks(self._characters)
        after = {place: _union(masks, places) for place, places in self._after.items()}
        starts = frozenset[int]().union(*(first for _, first, _ in self._lexemes.values()))
        found, seen = set[Node](), set[frozenset[int]]()
        todo = [
            (frozenset[int](), starts)
        ]  # where the same characters lead, and what goes on there
        while todo:
            here, ahead = todo.pop()
            behind = _union(after, here & after.keys())  # where a lexeme may end
            found |= {self._of[place] for place in ahead if masks[place] & behind}
            for letter in range(letters):
                taken = frozenset(place for place in ahead if masks[place] >> letter & 1)
                if taken and taken not in seen:
                    seen.add(taken)
                    todo.append((taken, frozenset().union(*map(self._within.__getitem__, taken))))
            if len(seen) > _MOST_STATES:
                return {lexeme for lexeme in self._lexemes if lexeme[0] != "chars"}
        return found


def _masks(characters: list[Node]) -> tuple[dict[int, int], int]:
    """Sets of characters as bits, one for all that are in the same sets, and the number of bits."""
    edges = {x for _, ranges, _ in characters for a, b in ranges for x in (a, b + 1)}
    alphabet = sorted({0, *edges})
    known = {
        node: sum(
            1 << bit
            for bit, code in enumerate(alphabet)
            if any(a <= code <= b for a, b in node[1]) != node[2]
        )
        for node in {*characters}
    }
    return {place: known[node] for place, node in enumerate(characters)}, len(alphabet)


def _union(masks: Mapping[int, int], places: Set[int]) -> int:
    return functools.reduce(operator.or_, (masks[place] for place in places), 0)
