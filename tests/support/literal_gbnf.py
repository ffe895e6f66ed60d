"""GBNF read character by character, as llama.cpp's guide describes it: a judge for conversions."""

import functools

_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class LiteralGbnf:
    """A grammar without left recursion."""

    def __init__(self, source):
        self._source, self._place, self._rules = source, 0, {}
        self._space(True)
        while self._place < len(source):
            name = self._name()
            self._space(False)
            self._take("::=")
            self._space(True)
            self._rules[name] = self._alternatives(False)
            self._space(True)
        self._ends = functools.cache(self._find_ends)

    def matches(self, text):
        """Whether a text follows the grammar."""
        self._text = text
        self._ends.cache_clear()
        return len(text) in self._ends("root", 0)

    def _find_ends(self, name, begin):
        return self._after(self._rules[name], frozenset([begin]))

    def _after(self, node, begins):
        kind, *rest = node
        if kind == "rule":
            return frozenset().union(*(self._ends(rest[0], begin) for begin in begins))
        if kind == "any":
            return frozenset().union(*(self._after(each, begins) for each in rest[0]))
        if kind == "all":
            return functools.reduce(lambda at, each: self._after(each, at), rest[0], begins)
        if kind == "char":
            texts = [(begin, self._text[begin : begin + 1]) for begin in begins]
            return frozenset(begin + 1 for begin, text in texts if text and rest[0](text))
        part, least, most = rest
        found, count = set(begins) if least == 0 else set(), 0
        while begins and count != most:
            begins, count = self._after(part, begins), count + 1
            if count >= least:
                if begins <= found:
                    break
                found |= begins
        return frozenset(found)

    def _take(self, text):
        assert self._source.startswith(text, self._place), self._source[self._place :]
        self._place += len(text)

    def _peek(self):
        return self._source[self._place : self._place + 1]

    def _space(self, lines):
        while self._peek() and self._peek() in (" \t\r\n" if lines else " \t") + "#":
            if self._peek() == "#":
                while self._peek() not in ("", "\n"):
                    self._place += 1
            else:
                self._place += 1

    def _name(self):
        begin = self._place
        while self._peek().isalnum() or self._peek() in ("-", "_"):
            self._place += 1
        assert self._place > begin
        return self._source[begin : self._place]

    def _alternatives(self, nested):
        found = [self._sequence(nested)]
        while self._peek() == "|":
            self._take("|")
            self._space(True)
            found.append(self._sequence(nested))
        return "any", found

    def _sequence(self, nested):
        found = []
        while (sign := self._peek()) and sign not in "|)\r\n":
            if sign == '"':
                self._take('"')
                characters = []
                while self._peek() != '"':
                    code = self._character()
                    characters.append(("char", lambda x, code=code: x == code))
                self._take('"')
                found.append(("all", characters))
            elif sign == "[":
                found.append(("char", self._set()))
            elif sign == ".":
                self._take(".")
                found.append(("char", lambda x: True))
            elif sign == "(":
                self._take("(")
                self._space(True)
                found.append(self._alternatives(True))
                self._take(")")
            elif sign in "*+?{":
                found.append(("times", found.pop(), *self._times()))
            else:
                found.append(("rule", self._name()))
            self._space(nested)
        return "all", found

    def _times(self):
        sign = self._peek()
        self._take(sign)
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        end = self._source.index("}", self._place)
        least, comma, most = self._source[self._place : end].partition(",")
        self._place = end + 1
        return int(least), (int(most) if most.strip() else None) if comma else int(least)

    def _set(self):
        self._take("[")
        negative = self._peek() == "^"
        self._take("^" if negative else "")
        ranges = []
        while self._peek() != "]":
            first = last = self._character()
            if self._peek() == "-" and self._source[self._place + 1] != "]":
                self._take("-")
                last = self._character()
            ranges.append((first, last))
        self._take("]")
        return lambda x: any(a <= x <= b for a, b in ranges) != negative

    def _character(self):
        if self._peek() != "\\":
            self._place += 1
            return self._source[self._place - 1]
        kind = self._source[self._place + 1]
        self._place += 2
        if kind not in _HEX:
            return _ESCAPES.get(kind, kind)
        self._place += _HEX[kind]
        return chr(int(self._source[self._place - _HEX[kind] : self._place], 16))
