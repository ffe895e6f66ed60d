"""A request while it is served."""

from __future__ import annotations

import time

import numpy as np

from dart_jax.serving.config import Level
from dart_jax.serving.request import OnUpdate, Request
from dart_jax.serving.rows import level_of
from dart_jax.serving.scheduling.pages import NO_TOKENS, PageKey


class Sequence:
    """A request, its tokens so far, and what it holds while it runs.

    Attributes:
      request: what was asked for.
      on_update: where its tokens go.
      level: how its steps sample.
      arrived: when it was accepted, in seconds of `time.monotonic`.
      count: tokens so far, of prompt and text. The last one, the root, is in no cache.
      read: rows in the caches, at most `count - 1`.
      slot: its slot; None while it waits.
      pages: those it holds, in order.
      known: how many of them can be found by their tokens.
      key: the key of the last known page.
      drafts: whether the drafter has read all that the target has; it is left out where drafting
        does not pay.
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
        self._limit = min(self.prompt_length + request.max_new_tokens, max_length)
        self._tokens = np.empty(self._limit, np.int32)
        self._tokens[: self.prompt_length] = request.tokens
        self.count = self.prompt_length
        self.read = 0
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
        return self._limit - self.count

    @property
    def unread(self) -> int:
        """Tokens that must be read before its next step."""
        return self.count - 1 - self.read

    def append(self, tokens: np.ndarray) -> None:
        """Adds new tokens; all but the last one are in the caches."""
        self._tokens[self.count : self.count + len(tokens)] = tokens
        self.count += len(tokens)
        self.read = self.count - 1

    def leave_drafts(self) -> None:
        """Goes on without the drafter, which will not have read what follows."""
        self.drafts, self.draft = False, None

    def forget(self) -> None:
        """Begins anew with nothing in the caches, but with the tokens so far."""
        self.read, self.slot, self.draft = 0, None, None
        self.pages, self.known, self.key, self.drafts = [], 0, NO_TOKENS, False
