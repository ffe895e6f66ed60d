"""Continues a text with another replica, where the one that wrote it has died."""

from __future__ import annotations

import dataclasses

import numpy as np

from dart_jax.serving.request import Logprobs, Request, Update


class Resumable:
    """A text that several replicas may have to write, one after the other.

    The same request gives the same tokens (see `Request`), so that a second replica begins anew,
    and what the first one gave is skipped. Rounding can make a difference where two tokens are
    almost equally likely, on machines of different kinds above all; then the text so far stands,
    and `request` asks for its continuation.

    Attributes:
      request: what the next replica is asked.
    """

    def __init__(self, request: Request):
        """Nothing of the text is known."""
        self.request = self._first = request
        self._tokens: list[int] = []
        self._kept = 0  # tokens that are part of the present request's prompt
        self._place = 0  # in the present replica's text

    def begin_again(self) -> None:
        """Another replica is asked."""
        self._place = self._kept

    def push(self, update: Update) -> Update | None:
        """What is new in the next update of the present replica; None if nothing is.

        Raises:
          Diverged: the replica gives another text than the one before it. `request` is for the
            next one.
        """
        old = self._tokens[self._place : self._place + len(update.tokens)]
        skipped = len(old)
        if tuple(old) != update.tokens[:skipped]:
            self._continue()
            raise Diverged(f"at new token {self._place}")
        self._place += len(update.tokens)
        self._tokens.extend(update.tokens[skipped:])
        if skipped == 0:
            return update
        if skipped == len(update.tokens) and update.finish is None:
            return None
        logprobs = update.logprobs
        if logprobs is not None:
            logprobs = Logprobs(*(part[skipped:] for part in logprobs))
        return Update(update.tokens[skipped:], update.drafted[skipped:], update.finish, logprobs)

    def _continue(self) -> None:
        """Makes the text so far a part of the prompt. The draws that follow depend on the seed and
        on positions, which stay the same."""
        first, so_far = self._first, np.array(self._tokens, np.int32)
        self._kept = len(so_far)
        # For these penalties the text so far counts. What they subtract for tokens that come again
        # is too much by one `presence_penalty`.
        bias = dict(first.logit_bias)
        for token, count in zip(*np.unique(so_far, return_counts=True), strict=True):
            penalty = first.presence_penalty + first.frequency_penalty * int(count)
            if penalty:
                value = bias.get(int(token), 0.0) - penalty
                bias[int(token)] = min(max(value, -100.0), 100.0)
        self.request = dataclasses.replace(
            first,
            tokens=np.concatenate([first.tokens, so_far]),
            max_new_tokens=first.max_new_tokens - self._kept,
            logit_bias=bias,
        )


class Diverged(Exception):
    """A replica gave other tokens than the one before it."""
