"""An answer while it is generated: its text, its time, and the drafts of its steps."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.request import Draft, Finish, Update
from dart_jax.errors import UserError
from dart_jax.generation import GeneratedText, Piece, Step
from dart_jax.model import DartModel
from dart_jax.text.tokenizer import Tokenizer

# Tokens seldom have more characters: longer texts are rejected without encoding.
_CHARACTERS_PER_TOKEN = 32

# A text to continue, or chat messages with role and content.
Prompt = str | Sequence[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Verified:
    """The draft of one step and its verification.

    Attributes:
      tree: int32 [3, N + 1], the draft tree (see `dart_jax.decoding.tree`).
      context: int32 [4], the last tokens up to and including the root, padded with -1 on the left.
      ids: int32 [d, k], the drafter's candidates; d is 0 if the host did not search.
      logits: float32 [d, k], the candidates' logits.
      pairs: float32 [d - 1, k, k], their pair scores; [0, k, k] if the drafter has none.
      tokens: int32 [n], the emitted tokens.
      drafted: how many of them are drafted; these come first, then the bonus token.
    """

    tree: np.ndarray
    context: np.ndarray
    ids: np.ndarray
    logits: np.ndarray
    pairs: np.ndarray
    tokens: np.ndarray
    drafted: int

    @classmethod
    def of(cls, step: Step) -> Verified | None:
        """Reads a step that has a draft; None for others."""
        if step.draft is None:
            return None
        return cls(*step.draft, tokens=np.array(step.tokens), drafted=step.drafted)

    @classmethod
    def of_update(cls, update: Update, context: Sequence[int]) -> Verified:
        """Reads an update of the engine, given the last 4 tokens before it: without a draft only
        the last one was verified, the root."""
        draft = update.draft
        if draft is None:
            tree = np.array([[context[-1]], [0], [0]], np.int32)
            ids, logits = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
            pairs = np.zeros((0, 0, 0), np.float32)
            draft = Draft(tree, np.array(context, np.int32), ids, logits, pairs)
        return cls(*draft, tokens=np.array(update.tokens), drafted=sum(update.drafted))


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
        prompt: Sequence[int] = (),
        stop_ids: Sequence[int] = (),
        search: SearchConfig = SearchConfig(),
    ):
        """Starts an empty answer to the tokens of a prompt, which any of `stop_ids` ends."""
        self.title, self.limit, self.search = title, limit, search
        self.verified: list[Verified] = []
        self.seconds = 0.0
        self.ended = False
        self._text = GeneratedText(tokenizer, stop_ids=stop_ids)
        self._context = [*[-1] * CONTEXT, *prompt][-CONTEXT:]
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
        """Adds what was received; raises the exception with which the answer failed."""
        while self._updates and not self.ended:
            update = self._updates.popleft()
            if isinstance(update, BaseException):
                self.ended = True
                raise update
            self._add(update)

    def _add(self, update: Update) -> None:
        if self.tokens:
            self.verified.append(Verified.of_update(update, self._context))
        self._context = [*self._context, *update.tokens][-CONTEXT:]
        self._text.append(update.tokens, update.drafted)
        self.seconds = update.seconds
        if update.finish is not None:
            self._text.end()
            self.ended = True


def prompt_label(chat: bool) -> str:
    """The prompt's name on the page and in messages."""
    return "Your message" if chat else "Text to continue"


def encode(model: DartModel, prompt: Prompt, max_tokens: int) -> list[int]:
    """Encodes a prompt to at most `max_tokens` tokens.

    Raises:
      UserError: there are more, or none, or characters that cannot be encoded.
    """
    chat = not isinstance(prompt, str)
    texts = [message["content"] for message in prompt] if chat else [prompt]
    name = prompt_label(chat)
    if not texts[-1].strip():
        raise UserError(f"{name} is empty; write some text or choose an example")
    too_long = (
        f"too long: {max_tokens:,} tokens fit beside the answer; shorten it, lower Maximum new "
        f"tokens{' or clear the chat' if len(texts) > 1 else ''}"
    )
    if len(texts) > 1:
        name += ", with the chat before it,"
    length = sum(map(len, texts))
    if length > max_tokens * _CHARACTERS_PER_TOKEN:
        raise UserError(f"{name} has {length:,} characters, which is {too_long}")
    try:
        if isinstance(prompt, str):
            tokens = model.tokenizer.encode(prompt)
        else:
            tokens = model.tokenizer.encode_chat(prompt)
    except UserError as error:
        raise UserError(f"{name} cannot be read: {error}") from None
    if len(tokens) > max_tokens:
        raise UserError(f"{name} has {len(tokens):,} tokens, which is {too_long}")
    outside = model.tokenizer.outside(tokens, model.target.vocab_size)
    if outside is not None:
        raise UserError(
            f"{name} has the token id {outside}, which the model does not know; remove it"
        )
    return tokens
