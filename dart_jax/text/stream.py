"""Incremental decoding of tokens to text, up to ids or strings that end it."""

from __future__ import annotations

from collections.abc import Sequence

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer

# An incomplete character has at most three bytes and a token at least one byte, so an incomplete
# character spans at most these last tokens. They also keep the next token from being decoded as the
# first one of a text, which some decoders treat differently.
_CONTEXT = 3

_REPLACEMENT = "\ufffd"


class TextStream:
    """Decodes one sequence token by token; the concatenated pieces equal `decode` of all ids.

    A piece is returned as soon as no later token can change it. Incomplete characters are therefore
    held back, as are runs of byte tokens (`<0xE2>`): if a run is not valid UTF-8, each of its
    tokens becomes U+FFFD. A stop string ends the text at the token that completes it in the text
    decoded so far, even a byte token. The work per token does not grow with the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] | str = (), stop_ids: Sequence[int] = ()
    ):
        """Starts an empty text.

        Args:
          tokenizer: special tokens are skipped.
          stop: strings that end the text; they may begin within a token.
          stop_ids: tokens that end the text and are not part of it.

        Raises:
          UserError: a stop string is empty.
        """
        self._tokenizer = tokenizer
        self._context: list[int] = []  # the last ids, special ones excluded
        self._returned = 0  # characters of their text that were returned
        self._run: list[int] = []  # byte tokens after the context
        self._stops = _StopStrings((stop,) if isinstance(stop, str) else stop)
        self._stop_ids = frozenset(stop_ids)
        self._ended = False  # by one of them

    @property
    def stopped(self) -> bool:
        """Whether a stop id came, or a stop string was completed, before which the text ends: more
        tokens are ignored."""
        return self._ended or self._stops.found

    def push(self, token_id: int) -> str:
        """Adds the next token; returns the text that is now final, often none."""
        if token_id in self._stop_ids:
            rest = self.finish()
            self._ended = True
            return rest
        token = self._tokenizer.backend.id_to_token(token_id)
        if self.stopped or not token or token_id in self._tokenizer.special_ids:
            return ""
        self._run.append(token_id)
        if not _is_byte(token):
            return self._stops.push(self._decode(final=False))
        if self._stops and self._stops.found_in(self._run_text()):
            return self._stops.push(self._decode(final=True))
        return ""

    def finish(self) -> str:
        """Returns the rest of the text."""
        if self.stopped:
            return ""
        return self._stops.push(self._decode(final=True)) + self._stops.finish()

    def _run_text(self) -> str:
        """The text of the run if it ends here; empty if it is not valid UTF-8."""
        tokens = [self._tokenizer.backend.id_to_token(id) or "" for id in self._run]
        try:
            bytes(int(token[3:5], 16) for token in tokens).decode()
        except UnicodeDecodeError:
            return ""
        return self._tokenizer.decode(self._context + self._run)[self._returned :]

    def _decode(self, final: bool) -> str:
        """Moves the run into the context; returns the text not returned yet."""
        ids, self._run = self._context + self._run, []
        text = self._tokenizer.decode(ids)
        # Only the last character can still change, and only if it may be part of one.
        final_length = len(text) - (text.endswith(_REPLACEMENT) and not final)
        piece = text[self._returned : final_length]
        held = len(text) - final_length
        self._context = ids[-_CONTEXT:]
        if len(ids) > _CONTEXT:
            text = self._tokenizer.decode(self._context)
        self._returned = len(text) - held
        return piece


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


class _StopStrings:
    """Passes text through up to the first completed stop string.

    If one character completes several, the longest counts.
    """

    def __init__(self, stops: Sequence[str]):
        if not all(stops):
            raise UserError("a stop string must not be empty; leave it out")
        self.found = False
        self._stops = stops
        self._held = ""  # the longest end of the text that may begin a stop string

    def __bool__(self) -> bool:
        return bool(self._stops)

    def found_in(self, text: str) -> bool:
        """Whether `text` as the next text would complete a stop string."""
        return any(stop in self._held + text for stop in self._stops)

    def push(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        begins = [(text.find(stop), stop) for stop in self._stops]
        ends = [(begin + len(stop), begin) for begin, stop in begins if begin >= 0]
        if ends:
            self.found = True
            return text[: min(ends)[1]]
        longest = max(map(len, self._stops), default=1) - 1
        for begin in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[begin:]) for stop in self._stops):
                text, self._held = text[:begin], text[begin:]
                break
        return text

    def finish(self) -> str:
        text, self._held = "" if self.found else self._held, ""
        return text
