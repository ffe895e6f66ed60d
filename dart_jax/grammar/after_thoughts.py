"""Texts that follow a grammar from the end of their thoughts on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dart_jax.grammar.matching import GrammarError, Grammars, Masked, Matcher, all_but
from dart_jax.text.thoughts import ThoughtMarks


class AfterThoughts:
    """One such text, which allows tokens as a `Matcher` does.

    Attributes:
      done: False, since the grammar applies to the end.
    """

    done = False

    def __init__(self, matcher: Matcher, marks: ThoughtMarks, grammars: Grammars):
        """Begins a text; `matcher`: of what follows the thoughts. They do not end the text."""
        self._matcher, self._marks, self._eos = matcher, marks, np.array(grammars.eos, np.int64)
        self._begun, self._thinking = marks.begin is None, marks.begin is None
        self._thoughts = all_but(grammars.eos, grammars.vocab_size)

    @property
    def error(self) -> GrammarError | None:
        """See `Matcher`."""
        return self._matcher.error

    def advance(self, tokens: Sequence[int]) -> None:
        """Adds tokens to the text."""
        for place, token in enumerate(tokens):
            if not self._begun:
                self._begun, self._thinking = True, token == self._marks.begin
                if self._thinking:
                    continue
            if not self._thinking:
                self._matcher.advance(tokens[place:])
                return
            self._thinking = token != self._marks.end

    def allows(self, ids: np.ndarray) -> np.ndarray:
        """Returns which tokens may follow the text: bool, as `ids`."""
        if self._thinking:
            return ~np.isin(ids, self._eos)
        allowed = self._matcher.allows(ids)
        return allowed if self._begun else allowed | (ids == self._marks.begin)

    def fit(self, tree: np.ndarray, nodes: int, max_depth: int) -> Masked:
        """Masks the nodes of a tree; see `Matcher.fit`. Nothing is drafted after the marks, nor
        before it is known whether the text thinks."""
        if self._begun and not self._thinking:
            return self._matcher.fit(tree, nodes, max_depth)
        fitted = np.zeros((4, nodes + 1), np.int32)
        fitted[0, 0] = tree[0, 0]
        masks = np.tile(self._thoughts, (nodes + 1, 1))
        begin = self._marks.begin
        if not self._begun and begin is not None:
            masks[0] = self._first()
            masks[0, begin // 32] |= np.uint32(1 << begin % 32)
            return Masked(fitted, masks)
        places, count = {0: 0}, 1
        children: dict[tuple[int, int], int] = {}
        for node in range(1, tree.shape[1]):
            token, parent, depth, score = tree[:, node].tolist()
            if count > nodes or not depth or depth > max_depth or parent not in places:
                continue
            if token in self._eos:
                continue
            place = children.setdefault((places[parent], token), count)
            if place < count:  # it is there already
                if token != self._marks.end:
                    places[node] = place
                continue
            fitted[:, count] = token, places[parent], depth, score
            if token == self._marks.end:
                masks[count] = self._first()
            else:
                places[node] = count
            count += 1
        return Masked(fitted, masks)

    def _first(self) -> np.ndarray:
        """Returns the tokens with which the rest may begin."""
        return self._matcher.fit(np.zeros((4, 1), np.int32), 0, 0).masks[0]
