"""A request while it is served."""

from __future__ import annotations

import time

import numpy as np

from dart_jax.engine.levels import Level
from dart_jax.engine.request import OnUpdate, Request
from dart_jax.engine.rows import level_of
from dart_jax.engine.scheduling.pages import NO_TOKENS, PageKey


class Sequence:
    """A request, its tokens so far, and what it holds while it runs.

    Attributes:
      request: what was asked for.
      on_update: where its tokens go.
      level: how its steps sample.
      arrived: when it was accepted, in seconds of `time.monotonic`.
      limit: tokens of prompt and text, at most.
      count: tokens so far, of prompt and text. The last one, the root, is in no cache.
      read: rows in the target's cache, at most `count - 1`.
      drafted: those of them that the drafter has read, too.
      slot: its slot; None while it waits.
      pages: those it holds, in order.
      known: how many of them can be found by their tokens.
      key: the key of the last known page.
      drafts: whether the drafter reads what it has not read before the next step.
      draft: its row in the result of the last step, if that has a draft for it.
      cancelled: whether nobody wants it any more.
      ended: whether it is over and holds nothing.
      begun: when it first got a slot; None before.
      seconds: time of the reads and steps that it took part in.
    """

    def __init__(self, request: Request, max_length: int, on_update: OnUpdate):
        """`max_length`: of prompt and new tokens together; above the prompt's."""
        self.request, self.on_update = request, on_update
        self.level: Level = level_of(request)
        self.arrived = time.monotonic()
        self.prompt_length = len(request.tokens)
        self.limit = min(self.prompt_length + request.max_new_tokens, max_length)
        self._tokens = np.empty(self.limit, np.int32)
        self._tokens[: self.prompt_length] = request.tokens
        self.count = self.prompt_length
        self.read = self.drafted = 0
        self.slot: int | None = None
        self.pages: list[int] = []
        self.known = 0
        self.key: PageKey = NO_TOKENS
        self.drafts = False
        self.draft: int | None = None
        self.cancelled = self.ended = False
        self.begun: float | None = None
        self.seconds = 0.0

    @property
    def tokens(self) -> np.ndarray:
        """Those of prompt and text so far, int32 [count]."""
        return self._tokens[: self.count]

    @property
    def text(self) -> np.ndarray:
        """The new tokens so far, int32 [count - prompt_length]."""
        return self._tokens[self.prompt_length : self.count]

    @property
    def remaining(self) -> int:
        """Tokens that may still follow."""
        return self.limit - self.count

    @property
    def unread(self) -> int:
        """Tokens that must be read before its next step."""
        return self.count - 1 - self.next_read

    @property
    def next_read(self) -> int:
        """The position from which it must be read."""
        return self.drafted if self.drafts else self.read

    @property
    def has_drafts(self) -> bool:
        """Whether the drafter has read all that the target has."""
        return self.drafted == self.read

    def reads(self, rows: int) -> None:
        """Notes that so many more tokens were read, as far as there are any."""
        end = min(self.next_read + rows, self.count - 1)
        self.read = max(self.read, end)
        if self.drafts:
            self.drafted = end

    def append(self, tokens: np.ndarray, *, drafted: bool) -> None:
        """Adds new tokens; all but the last one are in the caches, and the drafter's too if it read
        them and those before."""
        follows = drafted and self.has_drafts
        self._tokens[self.count : self.count + len(tokens)] = tokens
        self.count += len(tokens)
        self.read = self.count - 1
        if follows:
            self.drafted = self.read

    def forget(self) -> None:
        """Begins anew with nothing in the caches, but with the tokens so far."""
        self.read = self.drafted = 0
        self.slot, self.draft = None, None
        self.pages, self.known, self.key, self.drafts = [], 0, NO_TOKENS, False
