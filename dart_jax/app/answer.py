"""An answer while it is generated: its text, its time, and the drafts of its steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Literal

import numpy as np

from dart_jax.decoding.search.config import SearchConfig
from dart_jax.errors import UserError
from dart_jax.generation import Piece, Step, TextGeneration
from dart_jax.model import DartModel

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
        """Reads a step that has drafts; None for the prefill and the end."""
        if step.drafts is None:
            return None
        # Copies: views would keep the whole host buffer alive.
        drafts = (np.array(part[0]) for part in step.drafts)
        return cls(*drafts, tokens=np.array(step.tokens), drafted=step.drafted)


class Answer:
    """The answer of one method.

    A worker thread writes it while others read it, so its content is only appended to.

    Attributes:
      title: the method's title.
      limit: maximum number of tokens.
      pieces: the text.
      search: parameters of the tree search; None for the default of trees whose size changes.
      verified: the steps after the prefill.
      tokens: number of tokens so far.
      seconds: time of its own steps, prefill included, without waiting or other visitors' steps.
      finish: as in `Completion`; None while it is running or if it was stopped.
      ended: whether it is complete or stopped.
    """

    def __init__(
        self,
        title: str,
        limit: int,
        generation: TextGeneration,
        search: SearchConfig | None = None,
    ):
        """Prepares the answer without running anything."""
        self.title, self.limit, self.search = title, limit, search
        self.pieces: list[Piece] = []
        self.verified: list[Verified] = []
        self.tokens = 0
        self.seconds = 0.0
        self.finish: Literal["stop", "length"] | None = None
        self.ended = False
        self._generation = generation

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus token included; nan before the first."""
        steps = len(self.verified)
        return (self.tokens - 1) / steps if steps else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Speed over its own time; nan before the first step."""
        return self.tokens / self.seconds if self.seconds else float("nan")

    def steps(self) -> Generator[None, None, None]:
        """Generates the answer, one step per item."""
        steps = self._generation.steps(with_drafts=True)
        try:
            while True:
                began = time.perf_counter()
                step = next(steps, None)
                self.seconds += time.perf_counter() - began
                if step is None:
                    self.finish = self._generation.completion.finish
                    return
                self._append(step)
                yield
        finally:
            steps.close()
            self.ended = True

    def _append(self, step: Step) -> None:
        self.tokens += len(step.tokens)
        verified = Verified.of(step)
        if verified is not None:
            self.verified.append(verified)
        self.pieces.extend(step.pieces)


def race(left: Answer, right: Answer) -> Iterator[None]:
    """Generates both answers, one step per item, always of the one that has used less time.

    So on one device both have always used about the same time, as if each had its own device.
    """
    runners = [(answer, answer.steps()) for answer in (left, right)]
    try:
        while runners:
            runner = min(runners, key=lambda one: one[0].seconds)
            try:
                yield next(runner[1])
            except StopIteration:
                runners.remove(runner)
    finally:
        for _, steps in runners:
            steps.close()


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
    return tokens
