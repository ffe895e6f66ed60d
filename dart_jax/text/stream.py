"""Incremental decoding of tokens to text, up to ids or strings that end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer

# An incomplete character has at most three bytes and a token at least one byte, so an incomplete
# character spans at most these last tokens. They also keep the next token from being decoded as the
# first one of a text, which some decoders treat differently.
_CONTEXT = 3

_REPLACEMENT = "\ufffd"


class _Part(NamedTuple):
    """A part of what the tokens say; the text lacks it if it is hidden."""

    text: str
    hidden: bool = False


class TextStream:
    """Decodes one sequence token by token; the concatenated pieces equal `decode` of all ids.

    A piece is returned as soon as no later token can change it. Incomplete characters are therefore
    held back, as are runs of byte tokens (`<0xE2>`): if a run is not valid UTF-8, each of its
    tokens becomes U+FFFD. A stop string ends the text at the token that completes it in what was
    decoded so far, even a byte token. As in transformers, it is looked for in what all tokens say:
    with the names of special tokens, which the text lacks, and the space of a first word, which
    some decoders drop. The work per token does not grow with the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] | str = (), stop_ids: Sequence[int] = ()
    ):
        """Starts an empty text.

        Args:
          tokenizer: special tokens are skipped.
          stop: strings that end the text; they may begin within a token, even a special one.
          stop_ids: tokens that end the text and are not part of it.

        Raises:
          UserError: a stop string is empty, or not valid Unicode.
        """
        self._tokenizer = tokenizer
        self._context: list[int] = []  # the last ids, special ones excluded
        self._returned = 0  # characters of their text that were returned
        self._run: list[int] = []  # byte tokens after the context, and special ones among them
        self._stops = _StopStrings((stop,) if isinstance(stop, str) else stop)
        self._stop_ids = frozenset(stop_ids)
        self._ended = False  # by one of them

    @property
    def stopped(self) -> bool:
        """True once a stop id came, or a stop string, before which the text ends, was completed:
        more tokens are ignored."""
        return self._ended or self._stops.found

    def push(self, token_id: int) -> str:
        """Adds the next token; returns the text that is now final, often none."""
        if token_id in self._stop_ids:
            rest = self.finish()
            self._ended = True
            return rest
        token = self._tokenizer.backend.id_to_token(token_id)
        if self.stopped or not token:
            return ""
        special = token_id in self._tokenizer.special_ids
        if special and not (self._stops and self._run and self._run_parts()):
            return self._stops.push([_Part(token, hidden=True)])
        if self._stops and token.startswith("▁") and not (self._context or self._run):
            dropped = not self._tokenizer.decode([token_id]).startswith(" ")
            self._stops.push([_Part(" " * dropped, hidden=True)])
        self._run.append(token_id)
        if not special and not _is_byte(token):
            return self._stops.push(self._decode(final=False))
        if self._stops and self._stops.found_in(self._run_parts()):
            return self._stops.push(self._decode(final=True))
        return ""

    def finish(self) -> str:
        """Returns the rest of the text."""
        if self.stopped:
            return ""
        return self._stops.push(self._decode(final=True)) + self._stops.finish()

    def _run_parts(self) -> list[_Part]:
        """Returns the parts of the run if it ends here; none if it is not valid UTF-8."""
        tokens = [self._tokenizer.backend.id_to_token(id) or "" for id in self._shown(self._run)]
        try:
            bytes(int(token[3:5], 16) for token in tokens).decode()
        except UnicodeDecodeError:
            return []
        whole = self._tokenizer.decode(self._context + self._shown(self._run))
        return self._parts(whole, len(whole))

    def _decode(self, final: bool) -> list[_Part]:
        """Moves the run into the context; returns what was not returned yet."""
        ids = self._context + self._shown(self._run)
        text = self._tokenizer.decode(ids)
        # Only the last character can still change, and only if it may be part of one.
        final_length = len(text) - (text.endswith(_REPLACEMENT) and not final)
        parts = self._parts(text, final_length)
        held = len(text) - final_length
        self._context, self._run = ids[-_CONTEXT:], []
        if len(ids) > _CONTEXT:
            text = self._tokenizer.decode(self._context)
        self._returned = len(text) - held
        return parts

    def _parts(self, text: str, end: int) -> list[_Part]:
        """Returns the new parts up to `end` of the text of context and run, around the run's
        special tokens."""
        parts, begin = [], self._returned
        for place, id in enumerate(self._run):
            if id in self._tokenizer.special_ids:
                before = self._context + self._shown(self._run[:place])
                cut = min(max(len(self._tokenizer.decode(before)), begin), end)
                name = self._tokenizer.backend.id_to_token(id) or ""
                parts += [_Part(text[begin:cut]), _Part(name, hidden=True)]
                begin = cut
        return [*parts, _Part(text[begin:end])]

    def _shown(self, ids: Sequence[int]) -> list[int]:
        """The ids that are not special tokens."""
        return [id for id in ids if id not in self._tokenizer.special_ids]


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


class _StopStrings:
    """Passes text through up to the first completed stop string, and leaves out what is hidden.

    If one character completes several, the longest counts.
    """

    def __init__(self, stops: Sequence[str]):
        for stop in stops:
            if not stop:
                raise UserError("a stop string must not be empty; leave it out")
            if any("\ud800" <= character <= "\udfff" for character in stop):
                raise UserError(
                    f"the stop string {stop!r} holds half of a surrogate pair, which no text does; "
                    "replace it"
                )
        self.found = False
        self._stops = stops
        self._held = ""  # the longest end of the text that may begin a stop string
        self._hidden: list[bool] = []  # which of its characters are

    def __bool__(self) -> bool:
        return bool(self._stops)

    def found_in(self, parts: Sequence[_Part]) -> bool:
        """Tells whether these as the next parts would complete a stop string."""
        text = self._held + "".join(part.text for part in parts)
        return any(stop in text for stop in self._stops)

    def push(self, parts: Sequence[_Part]) -> str:
        for part in parts:
            self._held += part.text
            self._hidden += [part.hidden] * len(part.text)
        text = self._held
        begins = [(text.find(stop), stop) for stop in self._stops]
        ends = [(begin + len(stop), begin) for begin, stop in begins if begin >= 0]
        if ends:
            self.found = True
            return self._pass(min(ends)[1])
        longest = max(map(len, self._stops), default=1) - 1
        for begin in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[begin:]) for stop in self._stops):
                return self._pass(begin)
        return self._pass(len(text))

    def finish(self) -> str:
        return "" if self.found else self._pass(len(self._held))

    def _pass(self, end: int) -> str:
        """Returns what is shown before `end`, and holds the rest."""
        passed = zip(self._held[:end], self._hidden[:end], strict=True)
        self._held, self._hidden = self._held[end:], self._hidden[end:]
        return "".join(character for character, hidden in passed if not hidden)
