"""Results of generation: pieces of text, steps and completions."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from dart_jax.decoding.logits import TokenScores
from dart_jax.engine.request import Draft
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer


class Piece(str):
    """A piece of generated text.

    Attributes:
      drafted: whether the token that completed it was drafted; otherwise it is the target's own.
      row: index of its text in the batch.
    """

    drafted: bool
    row: int

    def __new__(cls, text: str, drafted: bool, row: int = 0) -> Piece:
        """Creates a piece."""
        piece = super().__new__(cls, text)
        piece.drafted, piece.row = drafted, row
        return piece

    def __getnewargs__(self) -> tuple[str, bool, int]:
        return str(self), self.drafted, self.row


class Step(NamedTuple):
    """New tokens of one step.

    Attributes:
      pieces: its new text, of all texts of the batch; the end of a text may come in a separate step
        without tokens.
      tokens: int32 [n], emitted tokens of the first text, including those after a stop string.
      drafted: the first `drafted` of them were drafted.
      draft: what was verified of the first text, if `steps` was called with `with_drafts` and
        something was drafted.
    """

    pieces: list[Piece]
    tokens: np.ndarray
    drafted: int
    draft: Draft | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Completion:
    """The continuation of one prompt.

    Attributes:
      text: text of the new tokens, without the stop string or token.
      tokens: int32 [n], the new tokens, including the one that ended the text.
      drafted: bool [n], which of them the drafter proposed; the others are the target's.
      prompt_tokens: length of the prompt in tokens.
      finish: `stop`, ended by a stop string or id; `length`, by the maximum length; None while
        generation is running.
      seconds: wall time of the whole batch: `prefill`, `device` (draft and verify), `search`, and
        `compile`, which only the first call of its kind needs.
      pieces: the text in pieces, as `DartModel.stream` yields them.
      logprobs: float32 [n], log-probability of each new token, if requested, as below.
      top_ids: int32 [n, k], the k most likely tokens in each place.
      top_logprobs: float32 [n, k], theirs.
      scores: float32 [n, V], what each token was drawn from, as in `transformers`.
    """

    text: str
    tokens: np.ndarray
    drafted: np.ndarray
    prompt_tokens: int
    finish: Literal["stop", "length"] | None
    seconds: dict[str, float]
    pieces: tuple[Piece, ...] = ()
    logprobs: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    scores: np.ndarray | None = None

    @property
    def steps(self) -> int:
        """Verifications that gave the tokens. Each ends with a token of the target's own; the first
        one, which follows the prompt, does not count."""
        return int(np.count_nonzero(~self.drafted[:-1]))

    @property
    def tau(self) -> float:
        """Acceptance length: tokens emitted per verification, bonus token included; nan before the
        first verification."""
        return (len(self.tokens) - 1) / self.steps if self.steps else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """New tokens of this completion per second of the batch, prefill included, compilation not;
        nan before the first token."""
        seconds = sum(time for stage, time in self.seconds.items() if stage != "compile")
        return len(self.tokens) / seconds if seconds else float("nan")

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Completion({text!r}, {self._summary()})"

    def _repr_html_(self) -> str:
        """Returns the text in a notebook, with drafted tokens marked."""
        marked = "".join(
            f'<span style="background: #2da44e33">{html.escape(piece)}</span>'
            if piece.drafted
            else html.escape(piece)
            for piece in self.pieces
        )
        style = "white-space: pre-wrap; text-align: left"
        note = f"{self._summary()}; drafted tokens are marked"
        return f'<pre style="{style}">{marked}</pre><small>{html.escape(note)}</small>'

    def _summary(self) -> str:
        words = [f"{len(self.tokens)} tokens"]
        if self.drafted.any():
            words.append(f"{self.drafted.mean():.0%} drafted")
        if self.steps:
            words.append(f"tau {self.tau:.2f}")
        return ", ".join([*words, f"finish {self.finish}"])


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
        **decoding: Any,
    ):
        """Starts an empty text, which strings and ids may end, of a row of a batch; `decoding`:
        further options of `TextStream`."""
        self.tokens: list[int] = []
        self.drafted: list[bool] = []
        self.pieces: list[Piece] = []
        self.finish: Literal["stop", "length"] | None = None
        self._row = row
        self._text = TextStream(tokenizer, stop, stop_ids, **decoding)
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
