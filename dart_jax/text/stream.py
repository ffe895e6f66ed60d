"""Incremental decoding of tokens to text, up to ids or strings that end it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer

# An incomplete character has at most three bytes and a token at least one byte, so an incomplete
# character spans at most these last tokens. They also keep the next token from being decoded as the
# first one of a text, which some decoders treat differently.
_CONTEXT = 3

_REPLACEMENT = "\ufffd"
_BYTE = re.compile("<0x..>")


class TextStream:
    """Decodes one sequence token by token; the concatenated pieces equal `decode` of all ids, or
    what `decode` of a prompt with them adds to that of the prompt.

    A piece is returned as soon as no later token can change it. Incomplete characters are therefore
    held back, as are runs of byte tokens (`<0xE2>`): if a run is not valid UTF-8, each of its
    tokens becomes U+FFFD. A stop string ends the text at the token that completes it in what was
    decoded so far, even a byte token. The work per token does not grow with the text.

    Attributes:
      stopped: whether a stop id came, or a stop string, before which the text ends, was completed:
        more tokens are ignored.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] | str = (),
        stop_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: Collection[int] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        continues: bool = False,
    ):
        """Starts an empty text.

        Args:
          tokenizer: the text's.
          stop: strings that end the text; they may begin within a token. The name of a special
            token ends it at that token.
          stop_ids: tokens that end the text and are not part of it.
          skip_special_tokens: leave them out, except those `shown`.
          shown: ids of special tokens that are part of the text.
          include_stop: what ends the text belongs to it.
          min_tokens: tokens in which stop strings are not looked for.
          continues: the text goes on with another one, and keeps the space before its first word.

        Raises:
          UserError: a stop string is empty, not valid Unicode, or has the name of a special token
            among other characters.
        """
        self.stopped = False
        self._tokenizer = tokenizer
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped.difference(shown)
        self._include_stop, self._unstopped = include_stop, min_tokens
        # The last ids that are not skipped, and characters of their text that were returned.
        self._context, self._returned = tokenizer.lead if continues else ([], 0)
        self._run: list[int] = []  # byte tokens after the context
        self._stops: list[str] = []
        self._held = ""  # the longest end of the text that may begin a stop string
        self._stop_ids = set(stop_ids)
        for one in (stop,) if isinstance(stop, str) else stop:
            self._add_stop(one)

    def _add_stop(self, stop: str) -> None:
        if not stop:
            raise UserError("a stop string must not be empty; leave it out")
        if any("\ud800" <= character <= "\udfff" for character in stop):
            raise UserError(
                f"the stop string {stop!r} holds half of a surrogate pair, which no text does; "
                "replace it"
            )
        for id in self._tokenizer.special_ids:
            name = self._tokenizer.backend.id_to_token(id)
            if name == stop:
                self._stop_ids.add(id)
                return
            if name and name in stop:
                raise UserError(
                    f"the stop string {stop!r} holds the special token {name!r}, which no text "
                    "does; stop at that token alone"
                )
        self._stops.append(stop)

    def push(self, token_id: int) -> str:
        """Adds the next token; returns the text that is now final, often none."""
        self._unstopped -= 1
        if token_id in self._stop_ids:
            self._stop_ids.discard(token_id)
            last = self.push(token_id) if self._include_stop else ""
            rest = last + self.finish()
            self.stopped = True
            return rest
        token = self._tokenizer.backend.id_to_token(token_id)
        if self.stopped or not token or token_id in self._skipped:
            return ""
        self._run.append(token_id)
        if not _BYTE.fullmatch(token):
            return self._until_stop(self._decode(final=False))
        if self._stops and self._is_valid_run():
            new = self._text_of(self._context + self._run)[self._returned :]
            if any(stop in self._held + new for stop in self._stops):
                return self._until_stop(self._decode(final=True))
        return ""

    def finish(self) -> str:
        """Returns the rest of the text."""
        if self.stopped:
            return ""
        text = self._until_stop(self._decode(final=True))
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _is_valid_run(self) -> bool:
        """Returns whether the bytes of the run are whole characters."""
        names = [self._tokenizer.backend.id_to_token(id) or "" for id in self._run]
        try:
            bytes.fromhex("".join(name[3:5] for name in names)).decode()
        except UnicodeDecodeError:
            return False
        return True

    def _decode(self, final: bool) -> str:
        """Moves the run into the context; returns what was not returned yet."""
        ids = self._context + self._run
        text = self._text_of(ids)
        # Only the last character can still change, and only if it may be part of one.
        end = len(text) - (text.endswith(_REPLACEMENT) and not final)
        new, held = text[self._returned : end], len(text) - end
        self._context, self._run = ids[-_CONTEXT:], []
        if len(ids) > _CONTEXT:
            text = self._text_of(self._context)
        self._returned = len(text) - held
        return new

    def _text_of(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _until_stop(self, new: str) -> str:
        """Adds text; returns what comes before the first completed stop string, or before what may
        begin one. If one character completes several, the longest counts."""
        text = self._held + new
        if self._unstopped >= 0:
            return text
        begins = [(text.find(stop), stop) for stop in self._stops]
        ends = [(begin + len(stop), begin) for begin, stop in begins if begin >= 0]
        self.stopped = bool(ends)
        if ends:
            end, begin = min(ends)
            return text[: end if self._include_stop else begin]
        longest = max(map(len, self._stops), default=1) - 1
        places = range(max(0, len(text) - longest), len(text))
        held = (n for n in places if any(stop.startswith(text[n:]) for stop in self._stops))
        end = next(held, len(text))
        self._held = text[end:]
        return text[:end]
