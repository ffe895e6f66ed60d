"""An answer being written: its text, its clock, and what each of its steps drafted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Literal

import numpy as np

from dart_jax.errors import UserError
from dart_jax.generation import Piece, Step
from dart_jax.model import DartModel
from dart_jax.text_generation import TextGeneration

# A character is seldom more than this many times a token: longer texts are not even encoded.
_CHARACTERS_A_TOKEN = 32

# A text to go on with, or messages with role and content.
Words = str | Sequence[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Verified:
    """What one step drafted, and what came of it.

    Attributes:
      tree: int32 [3, N + 1], the draft tree (see `dart_jax.decoding.tree`).
      context: int32 [4], the tokens before, the root at the end; -1 where there are fewer.
      ids: int32 [d, k], the drafter's candidates; d is 0 where the host did not search.
      logits: float32 [d, k], theirs.
      tokens: int32 [n], the tokens it emitted.
      drafted: how many of them, the first, were drafted; then comes the target's own.
    """

    tree: np.ndarray
    context: np.ndarray
    ids: np.ndarray
    logits: np.ndarray
    tokens: np.ndarray
    drafted: int

    @classmethod
    def of(cls, step: Step) -> Verified | None:
        """What a watched step verified; None of the prefill and of the end."""
        if step.drafts is None:
            return None
        # Copies: views would keep all that was handed over.
        drafts = (np.array(part[0]) for part in step.drafts)
        return cls(*drafts, tokens=np.array(step.tokens), drafted=step.drafted)


class Answer:
    """One method's answer.

    A worker writes it and others read it meanwhile: what is there is only added to.

    Attributes:
      title: the method's.
      pieces: its text.
      verified: its steps behind the prefill.
      tokens: so far.
      seconds: of its own steps, prefill included: not of waiting, nor of other visitors' steps.
      finish: as in `Completion`; None while it goes on, and where it was stopped.
      ended: whether no more comes.
    """

    def __init__(self, title: str, generation: TextGeneration):
        """Prepares; nothing runs yet."""
        self.title = title
        self.pieces: list[Piece] = []
        self.verified: list[Verified] = []
        self.tokens = 0
        self.seconds = 0.0
        self.finish: Literal["stop", "length"] | None = None
        self.ended = False
        self._generation = generation

    @property
    def text(self) -> str:
        """So far."""
        return "".join(self.pieces)

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus included; nan before the first."""
        steps = len(self.verified)
        return (self.tokens - 1) / steps if steps else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Of its own time; nan before there is any."""
        return self.tokens / self.seconds if self.seconds else float("nan")

    def steps(self) -> Generator[None, None, None]:
        """Writes it, a step an item."""
        steps = self._generation.steps(watch=True)
        try:
            while True:
                began = time.perf_counter()
                step = next(steps, None)
                self.seconds += time.perf_counter() - began
                if step is None:
                    self.finish = self._generation.completion.finish
                    return
                self._take(step)
                yield
        finally:
            steps.close()
            self.ended = True

    def _take(self, step: Step) -> None:
        self.tokens += len(step.tokens)
        verified = Verified.of(step)
        if verified is not None:
            self.verified.append(verified)
        self.pieces.extend(step.pieces)


def race(left: Answer, right: Answer) -> Iterator[None]:
    """Writes both answers, a step an item: the next step is that of the one whose clock is behind.

    So on one device both have always used about the same time, as if each had one for itself.
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


def encode(model: DartModel, words: Words, most: int) -> list[int]:
    """The tokens of a prompt, at most so many.

    Raises:
      UserError: there are more, or none.
    """
    chat = not isinstance(words, str)
    texts = [message["content"] for message in words] if chat else [words]
    if not any(text.strip() for text in texts):
        raise UserError("there is no text yet; write some, or take an example")
    length = sum(map(len, texts))
    too_long = f"at most {most:,} tokens can be read here; shorten it"
    if chat and len(texts) > 1:
        too_long += ", or clear the chat"
    if length > most * _CHARACTERS_A_TOKEN:
        raise UserError(f"a text of {length:,} characters is too long: {too_long}")
    if isinstance(words, str):
        tokens = model.tokenizer.encode(words)
    else:
        tokens = model.tokenizer.encode_chat(words)
    if len(tokens) > most:
        raise UserError(f"a text of {len(tokens):,} tokens is too long: {too_long}")
    return tokens
