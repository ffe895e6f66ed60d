"""JSON values of a file, one by one: its lines, or the elements of an array.

A broken value costs itself alone. In lines, reading goes on with the next one; elsewhere, at the
next place where a value begins that is like those before. No more than one value is in memory, and
no more than `LONGEST` characters of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from dart_jax.errors import UserError

LONGEST = 2**26  # characters of a value; one that is longer counts as broken

_CHUNK = 2**16  # characters read at a time
_BLANK = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s,]*")
_FIRST_NAME = re.compile(r'\{\s*"?([^"\\{}:]+)"?\s*:')
_TOO_LONG = f"it has more than {LONGEST:,} characters, or does not end"
_BOM = b"\xef\xbb\xbf"

# Called with the error of a value that cannot be read.
Bad = Callable[[UserError], None]


def in_lines(head: bytes) -> bool:
    """Whether a file that should hold a value per line does so, from its first bytes.

    Otherwise it holds one array of all values, or values that are spread over lines.
    """
    line, _, rest = head.removeprefix(_BOM).lstrip().partition(b"\n")
    if not line.startswith(b"["):
        return line.strip() != b"{"
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return bool(rest.strip())


def lines(stream: BinaryIO, path: Path, bad: Bad) -> Iterator[tuple[int, Any]]:
    """Yields the line number and value of every line that is neither blank nor null."""
    number = 0
    while line := stream.readline(LONGEST):
        number += 1
        long = len(line) == LONGEST
        while long and not line.endswith(b"\n") and (line := stream.readline(_CHUNK)):
            pass
        if line.isspace() and not long:
            continue
        try:
            if long:
                raise ValueError(_TOO_LONG)
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad(UserError(f"{path}:{number}: broken JSON: {error}"))
            continue
        if value is not None:
            yield number, value


def elements(stream: TextIO, path: Path, bad: Bad) -> Iterator[tuple[int, Any]]:
    """Yields the line number and value of every element of an array, or of a sequence of values.

    Args:
      stream: the text; bytes that are not UTF-8 are escaped as surrogates.
      path: its file.
      bad: called with the error of each broken value; reading then goes on.
    """
    text = _Text(stream)
    names: set[str] = set()  # of all objects so far
    array = False
    while char := text.skip(_BETWEEN):
        if char == "]" or (char == "[" and not array):
            array = char == "["
            text.move(1)
            continue
        try:
            value, length = text.decode()
            # After a missing quote, what is between strings looks like strings.
            if isinstance(value, str) and array and text.after(length) not in ("", ",", "]"):
                raise json.JSONDecodeError("Expecting ',' delimiter", text.text, text.at + length)
        except (ValueError, RecursionError) as error:
            where, reason = text.line, str(error)
            if isinstance(error, json.JSONDecodeError):
                where, reason = text.line_of(error.pos), error.msg
            if isinstance(error, _UnfinishedError):
                reason = "the file ends inside of this record" if text.ended else _TOO_LONG
                where = text.line
            bad(UserError(f"{path}:{where}: broken JSON: {reason}"))
            if not text.resume(names):
                return
            continue
        if not text.is_unicode(length):
            bad(UserError(f"{path}:{text.line}: it is not UTF-8 text"))
        elif value is not None:
            names |= value.keys() if isinstance(value, dict) else set()
            text.opening = char if char in '{["' else text.opening
            yield text.line, value
        text.move(length)
    if array:
        bad(UserError(f"{path}:{text.line}: broken JSON: the array does not end"))


class _UnfinishedError(ValueError):
    """The text ends inside of a value."""


class _Text:
    """The part of a text that is in memory.

    Attributes:
      text: this part.
      at: the place in it up to which values were read.
      line: the line of this place.
      ended: whether nothing comes after this part.
      opening: the character with which values begin, as far as is known.
    """

    def __init__(self, stream: TextIO):
        self.text, self.at, self.line, self.ended, self.opening = "", 0, 1, False, ""
        self._stream = stream
        self._decode = json.JSONDecoder().raw_decode

    def line_of(self, position: int) -> int:
        """Returns the line of a position in `text`."""
        return self.line + self.text.count("\n", self.at, position)

    def move(self, length: int) -> None:
        """Moves on by `length` characters."""
        self.line = self.line_of(self.at + length)
        self.at += length

    def more(self) -> bool:
        """Reads on, and forgets what is before `at`; whether there was more, and room for it."""
        size = len(self.text) - self.at
        if size >= LONGEST:
            return False
        new = self._stream.read(min(max(_CHUNK, size), LONGEST - size))
        self.text, self.at = self.text[self.at :] + new, 0
        self.ended = not new
        return bool(new)

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Moves behind all that matches; returns the character there, "" at the end."""
        while True:
            match = pattern.match(self.text, self.at)
            self.move(match.end() - self.at if match else 0)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def after(self, length: int) -> str:
        """Returns the first character `length` ahead that is not blank; "" at the end."""
        while True:
            match = _BLANK.match(self.text, self.at + length)
            end = match.end() if match else len(self.text)
            if end < len(self.text) or not self.more():
                return self.text[end : end + 1]

    def decode(self) -> tuple[Any, int]:
        """Returns the value that begins here, and its length.

        Raises:
          ValueError: it is broken; a `_UnfinishedError` if it does not end.
          RecursionError: it is nested too deeply.
        """
        while True:
            try:
                value, end = self._decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # An error at the end of this part may only mean that the value continues.
                near = error.pos > len(self.text) - 16
                if not near and not error.msg.startswith("Unterminated"):
                    raise
                if not self.more():
                    raise _UnfinishedError from None
            else:
                return value, end - self.at

    def is_unicode(self, length: int) -> bool:
        """Whether the next `length` characters were UTF-8."""
        if not self.text.isascii():
            try:
                self.text[self.at : self.at + length].encode()
            except UnicodeEncodeError:
                return False
        return True

    def resume(self, names: set[str]) -> bool:
        """Moves from a broken value to the next one; whether there is one.

        Objects inside of the broken value, such as the messages of a chat, are not taken for the
        next one: it has mostly the names that objects had before, or begins as the broken one.
        """
        here = self.text[self.at]
        opening = self.opening or (here if here in '{["' else "{")
        broken = _FIRST_NAME.match(self.text, self.at)
        first = broken and broken[1]
        self.move(1)
        while True:
            place = self.text.find(opening, self.at)
            self.move((place if place >= 0 else len(self.text)) - self.at)
            if place < 0:
                if not self.more():
                    return False
                continue
            try:
                value, length = self.decode()
            except (ValueError, RecursionError):
                self.move(1)
                continue
            if not isinstance(value, dict):
                if self.after(length) in ("", ",", "]"):
                    return True
                length = 1  # where one text seems to end, another one may begin
            elif (
                2 * len(value.keys() & names) > len(value)
                or next(iter(value), "") == first
                or not (names or first)
            ):
                return True
            self.move(length)
