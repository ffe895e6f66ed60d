"""An answer while it is generated: its text, its time, and its steps."""

from __future__ import annotations

from collections import deque

import numpy as np

from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.request import Finish, Request, Update
from dart_jax.generation import GeneratedText, Piece, Step
from dart_jax.text.tokenizer import Tokenizer


class Answer:
    """The answer of one method to one prompt.

    The engine's thread passes updates to `receive`; everything else belongs to the page's.

    Attributes:
      title: the method's title.
      request: what the engine is asked for.
      search: parameters of the tree search.
      steps: its steps after the first one, which has nothing to verify.
      seconds: time of its own steps, the prompt's reading included, without waiting.
      ended: whether it is complete or stopped.
    """

    def __init__(
        self,
        title: str,
        request: Request,
        tokenizer: Tokenizer,
        search: SearchConfig = SearchConfig(),
    ):
        """Starts an empty answer; see the attributes."""
        self.title, self.request, self.search = title, request, search
        self.steps: list[Step] = []
        self.seconds = 0.0
        self.ended = False
        self._text = GeneratedText(tokenizer, stop_ids=request.stop_ids)
        self._updates: deque[Update | BaseException] = deque()

    @property
    def limit(self) -> int:
        """Maximum number of tokens."""
        return self.request.max_new_tokens

    @property
    def pieces(self) -> list[Piece]:
        """The text so far, coloured by who wrote it."""
        return self._text.pieces

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    @property
    def tokens(self) -> int:
        """Number of tokens so far."""
        return len(self._text.tokens)

    @property
    def finish(self) -> Finish | None:
        """As in `Completion`; None while it is running or if it was stopped."""
        return self._text.finish

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus token included; nan before the first."""
        return (self.tokens - 1) / len(self.steps) if self.steps else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Speed over its own time; nan before the first step."""
        return self.tokens / self.seconds if self.seconds else float("nan")

    def receive(self, update: Update | BaseException) -> None:
        """Keeps an update for `take_in`. Callable from any thread."""
        self._updates.append(update)

    def take_in(self) -> None:
        """Adds the updates so far; raises the exception with which the answer failed."""
        while self._updates and not self.ended:
            update = self._updates.popleft()
            if isinstance(update, BaseException):
                raise update
            first = not self.tokens
            pieces = self._text.append(update.tokens, update.drafted)
            if not first:
                tokens = np.array(update.tokens, np.int32)
                self.steps.append(Step(pieces, tokens, sum(update.drafted), update.draft))
            self.seconds = update.seconds
            if update.finish is not None:
                self._text.end()
                self.ended = True
