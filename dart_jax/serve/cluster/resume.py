"""Continues a text with another replica, where the one that wrote it has died."""

from __future__ import annotations

from dart_jax.serving.request import Logprobs, Update


class Diverged(Exception):
    """A replica gave other tokens than the one before it."""


class Resumable:
    """Passes on every token of a text once, however often replicas begin it anew.

    The same request always gives the same tokens (see `Request`), so that what has been passed on
    is skipped by its number.
    """

    def __init__(self) -> None:
        """Nothing has been passed on."""
        self._tokens: list[int] = []
        self._place = 0  # in the present replica's text

    def begin_again(self) -> None:
        """Another replica begins."""
        self._place = 0

    def push(self, update: Update) -> Update | None:
        """What is new in the next update of the present replica; None if nothing is.

        Raises:
          Diverged: what is not new differs from what was passed on.
        """
        old = self._tokens[self._place : self._place + len(update.tokens)]
        skipped = len(old)
        if tuple(old) != update.tokens[:skipped]:
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
