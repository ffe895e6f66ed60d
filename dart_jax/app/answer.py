"""An answer while it is generated: its text, its time, and the drafts of its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.request import Draft, Finish, Update
from dart_jax.errors import UserError
from dart_jax.generation import GeneratedText, Piece, Step
from dart_jax.generation.prompts import encode_prompt
from dart_jax.model import DartModel
from dart_jax.text.tokenizer import Tokenizer

# Tokens seldom have more characters: longer texts are rejected without encoding.
_CHARACTERS_PER_TOKEN = 32

# A text to continue, or chat messages with role and content.
Prompt = str | Sequence[dict[str, str]]


class Verified(NamedTuple):
    """The draft of one step and its verification.

    Attributes:
      draft: the draft tree, and the candidates that it was built from.
      tokens: int32 [n], the emitted tokens.
      drafted: number of them that were drafted; these come first, then the bonus token.
    """

    draft: Draft
    tokens: np.ndarray
    drafted: int

    @classmethod
    def of(cls, step: Step) -> Verified | None:
        """Reads a step that has a draft; None for others."""
        if step.draft is None:
            return None
        return cls(step.draft, np.array(step.tokens), step.drafted)

    @classmethod
    def of_update(cls, update: Update, context: Sequence[int]) -> Verified:
        """Reads an update of the engine, after the last 4 tokens before it: without a draft only
        the last one was verified, the root."""
        draft = update.draft
        if draft is None:
            tree = np.array([[context[-1]], [0], [0]], np.int32)
            ids, logits = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
            pairs = np.zeros((0, 0, 0), np.float32)
            draft = Draft(tree, np.array(context, np.int32), ids, logits, pairs)
        return cls(draft, np.array(update.tokens), sum(update.drafted))

    @property
    def nodes(self) -> int:
        """Number of drafted nodes."""
        return int((self.draft.tree[2] > 0).sum())


class Answer:
    """The answer of one method.

    The engine's thread passes updates to `receive`; everything else belongs to the page's.

    Attributes:
      title: the method's title.
      limit: maximum number of tokens.
      search: parameters of the tree search.
      verified: the steps after the first one, which has nothing to verify.
      seconds: time of its own steps, the prompt's reading included, without waiting.
      ended: whether it is complete or stopped.
    """

    def __init__(
        self,
        title: str,
        limit: int,
        tokenizer: Tokenizer,
        prompt: Sequence[int] | np.ndarray = (),
        stop_ids: Sequence[int] = (),
        search: SearchConfig = SearchConfig(),
    ):
        """Starts an empty answer to the tokens of a prompt, which any of `stop_ids` ends."""
        self.title, self.limit, self.search = title, limit, search
        self.verified: list[Verified] = []
        self.seconds = 0.0
        self.ended = False
        self._text = GeneratedText(tokenizer, stop_ids=stop_ids)
        self._context = [*[-1] * CONTEXT, *map(int, prompt)][-CONTEXT:]
        self._updates: deque[Update | BaseException] = deque()

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
        steps = len(self.verified)
        return (self.tokens - 1) / steps if steps else float("nan")

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
            if self.tokens:
                self.verified.append(Verified.of_update(update, self._context))
            self._context = [*self._context, *update.tokens][-CONTEXT:]
            self._text.append(update.tokens, update.drafted)
            self.seconds = update.seconds
            if update.finish is not None:
                self._text.end()
                self.ended = True


def encode(model: DartModel, prompt: Prompt, most: int) -> np.ndarray:
    """Returns a prompt's tokens, int64 [n], at most `most`.

    Raises:
      UserError: there are more, or none, or characters that cannot be encoded.
    """
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    if not texts[-1].strip():
        raise UserError("the prompt is empty; write some text or choose an example")
    short = sum(map(len, texts)) <= most * _CHARACTERS_PER_TOKEN
    tokens = encode_prompt(model.tokenizer, prompt, {}, model.target.vocab_size) if short else ()
    if not short or len(tokens) > most:
        clear = " or clear the chat" if len(texts) > 1 else ""
        raise UserError(
            f"the prompt is too long: {most:,} tokens fit beside the answer; shorten it, lower "
            f"Maximum new tokens{clear}"
        )
    return np.asarray(tokens)
