"""The text of one sequence, as its tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np

from dart_jax.decoding.logits import TokenScores
from dart_jax.generation.results import Piece
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer


class GeneratedText:
    """One text while it is generated.

    Attributes:
      tokens: the new ids so far, up to the one that ended it.
      drafted: which of them were drafted.
      pieces: the text, coloured by who wrote it.
      finish: as in `Completion`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        row: int = 0,
    ):
        """Starts an empty text.

        Args:
          tokenizer: the target's.
          stop: strings that end it.
          stop_ids: ids that end it.
          row: its place in its batch.
        """
        self.tokens: list[int] = []
        self.drafted: list[bool] = []
        self.pieces: list[Piece] = []
        self.finish: Literal["stop", "length"] | None = None
        self._row = row
        self._text = TextStream(tokenizer, stop, stop_ids)
        self._scores: list[TokenScores] = []

    def append(
        self,
        tokens: Sequence[int] | np.ndarray,
        drafted: Sequence[bool] | np.ndarray,
        scores: TokenScores | None = None,
    ) -> list[Piece]:
        """Appends tokens, and whether each was drafted, up to one that ends the text; returns the
        new pieces."""
        before = len(self.pieces)
        if scores is not None:
            self._scores.append(scores)
        for token, was_drafted in zip(map(int, tokens), map(bool, drafted), strict=True):
            if self.finish is not None:
                break
            self.tokens.append(token)
            self.drafted.append(was_drafted)
            self._add(self._text.push(token))
            if self._text.stopped:
                self.finish = "stop"
        return self.pieces[before:]

    def end(self) -> list[Piece]:
        """Ends the text: no more tokens follow. Returns the last pieces."""
        before = len(self.pieces)
        if self.finish is None:
            self._add(self._text.finish())
            self.finish = "stop" if self._text.stopped else "length"
        return self.pieces[before:]

    def scores(self) -> dict[str, np.ndarray]:
        """Reports about the tokens, by field of `Completion`; empty if there are none."""
        if not self._scores:
            return {}
        count = len(self.tokens)
        joined = jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *self._scores)
        return {name: value for name, value in joined._asdict().items() if value is not None}

    def _add(self, text: str) -> None:
        if text:
            self.pieces.append(Piece(text, self.drafted[-1], self._row))
