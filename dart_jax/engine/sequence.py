"""A request while the engine has it: its tokens so far, and what it holds."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from dart_jax.decoding.logits import TokenScores
from dart_jax.engine.pages import EMPTY_HASH, PageHash
from dart_jax.engine.request import Logprobs, Request, SamplingMode
from dart_jax.grammar.after_thoughts import AfterThoughts
from dart_jax.grammar.matching import Grammars, Matcher
from dart_jax.grammar.min_tokens import MinTokens


class Sequence:
    """A request, its tokens so far, and what it holds while it runs.

    Attributes:
      request: what was asked for.
      mode: how its steps sample.
      matcher: says what may follow the text, or None if anything may.
      scores: of the prompt's tokens that were read, if they are reported, in parts.
      arrived: when it was accepted, in seconds of `time.monotonic`.
      limit: tokens of prompt and text, at most.
      num_tokens: tokens so far, of prompt and text. The last one, the root, is in no cache.
      num_computed_tokens: rows in the target's cache, at most `num_tokens - 1`.
      num_drafter_tokens: the rows that the drafter has read, too.
      slot: its slot, or None while it waits.
      pages: those it holds, in order.
      copy: the page to be copied before it is read, and the one of its own to copy it to.
      waits_for: another sequence, and how many rows of that must have been read before this one
        begins, if it must wait.
      num_cached_pages: how many of them other sequences can find by their hashes.
      page_hash: the hash of the last of these.
      drafter_reads: whether the drafter reads what it has not read before the next step.
      draft_row: its row in the result of the last step, if that has a draft for it.
      ended: whether it is over and holds nothing.
      begun: when it first got a slot, or None before.
      cached: tokens that were in the caches then.
    """

    def __init__(
        self,
        request: Request,
        max_length: int,
        grammars: Grammars | None = None,
    ):
        """Begins with a prompt shorter than `max_length`; needs the target's grammars if the
        request has one or `min_new_tokens`."""
        if request.grammar is not None:
            assert grammars is not None
            ends = tuple(dict.fromkeys((*request.stop_ids, *grammars.eos)))
            request = dataclasses.replace(request, stop_ids=ends)
        self.request = request
        self.matcher: Matcher | MinTokens | AfterThoughts | None = None
        if request.min_new_tokens and request.stop_ids:
            assert grammars is not None
            least, ids = request.min_new_tokens, request.stop_ids
            self.matcher = MinTokens(least, ids, grammars.vocab_size)
        if request.grammar is not None:
            assert grammars is not None
            self.matcher = grammars.start(request.grammar)
            if request.thoughts is not None:
                self.matcher = AfterThoughts(self.matcher, request.thoughts, grammars)
        self.mode: SamplingMode = request.mode
        self.scores: list[Logprobs] = []
        self.arrived = time.monotonic()
        self.prompt_length = len(request.tokens)
        self.limit = min(self.prompt_length + request.max_new_tokens, max_length)
        self._tokens = np.empty(self.limit, np.int32)
        self._tokens[: self.prompt_length] = request.tokens
        self.num_tokens = self.prompt_length
        self.num_computed_tokens = self.num_drafter_tokens = 0
        self.slot: int | None = None
        self.pages: list[int] = []
        self.copy: tuple[int, int] | None = None
        self.waits_for: tuple[Sequence, int] | None = None
        self.num_cached_pages = 0
        self.page_hash: PageHash = EMPTY_HASH
        self.drafter_reads = False
        self.draft_row: int | None = None
        self.ended = False
        self.begun: float | None = None
        self.cached = 0

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of prompt and text so far, int32 [count]."""
        return self._tokens[: self.num_tokens]

    @property
    def text(self) -> np.ndarray:
        """The new tokens so far, int32 [count - prompt_length]."""
        return self._tokens[self.prompt_length : self.num_tokens]

    @property
    def remaining(self) -> int:
        """Tokens that may still follow."""
        return self.limit - self.num_tokens

    @property
    def num_unread_tokens(self) -> int:
        """Tokens that must be read before its next step."""
        return self.num_tokens - 1 - self.next_position

    @property
    def next_position(self) -> int:
        """The position from which it must be read."""
        return self.num_drafter_tokens if self.drafter_reads else self.num_computed_tokens

    @property
    def drafter_is_current(self) -> bool:
        """True if the drafter has read all that the target has."""
        return self.num_drafter_tokens == self.num_computed_tokens

    @property
    def needs_scores(self) -> bool:
        """True if the tokens that are read next must be scored."""
        scored = sum(len(part.own) for part in self.scores)
        return self.request.prompt_logprobs is not None and scored < self.prompt_length - 1

    def add_scores(self, scores: TokenScores, rows: int) -> None:
        """Adds the scores of the next tokens: of `rows` rows, as far as there are any."""
        assert self.request.prompt_logprobs is not None
        count = min(rows, self.num_unread_tokens)
        # Copies: views would keep all rows of a program alive.
        own = TokenScores(*(x if x is None else x[:count].copy() for x in scores))
        self.scores.append(Logprobs.of(own, self.request.prompt_logprobs))

    @property
    def prompt_logprobs(self) -> Logprobs | None:
        """Returns all scores of the prompt, or None if they are not reported."""
        most = self.request.prompt_logprobs
        if most is None:
            return None
        if not self.scores:  # of a single token
            none, top = np.zeros(0, np.float32), np.zeros((0, most), np.float32)
            return Logprobs(none, top.astype(np.int32), top, none.astype(np.int32))
        return Logprobs(*map(np.concatenate, zip(*self.scores, strict=True)))

    def advance(self, rows: int) -> None:
        """Notes that `rows` more tokens were read, as far as there are any."""
        end = min(self.next_position + rows, self.num_tokens - 1)
        self.num_computed_tokens = max(self.num_computed_tokens, end)
        if self.drafter_reads:
            self.num_drafter_tokens = end

    def append(self, tokens: np.ndarray, *, drafted: bool) -> None:
        """Adds new tokens; all but the last one are in the caches, and the drafter's too if it read
        them and those before."""
        follows = drafted and self.drafter_is_current
        self._tokens[self.num_tokens : self.num_tokens + len(tokens)] = tokens
        self.num_tokens += len(tokens)
        self.num_computed_tokens = self.num_tokens - 1
        if follows:
            self.num_drafter_tokens = self.num_computed_tokens

    def reset(self) -> None:
        """Begins again with nothing in the caches, but with the tokens so far."""
        if self.needs_scores:
            self.scores = []
        self.num_computed_tokens = self.num_drafter_tokens = 0
        self.slot, self.draft_row, self.copy = None, None, None
        self.pages, self.num_cached_pages, self.page_hash = [], 0, EMPTY_HASH
        self.drafter_reads = False
