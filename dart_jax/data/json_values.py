"""JSON values of a file, one by one: its lines, or the elements of an array.

A broken line costs itself alone, and so does an element that the end of the file cuts off. No more
than one value is in memory, and no more than `LONGEST` characters of it.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError

LONGEST = 2**26  # characters of a value; one that is longer counts as broken

_CHUNK = 2**16  # characters read at a time
_BETWEEN = re.compile(r"[\s,]*")
_TOO_LONG = f"it has more than {LONGEST:,} characters, or does not end"
_BOM = b"\xef\xbb\xbf"

# Called with the error of a value that cannot be read.
Bad = Callable[[UserError], None]


def in_lines(head: bytes) -> bool:
    """Returns whether a file that should hold a value per line does so, from its first bytes.

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


def lines(stream: io.BufferedReader, path: Path, bad: Bad) -> Iterator[tuple[int, Any]]:
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


def elements(stream: io.BufferedReader, path: Path, bad: Bad) -> Iterator[tuple[int, Any]]:
    """Yields the line number and value of every element of an array, or of a sequence of values.

    Args:
      stream: UTF-8 text; what comes before a damage is read.
      path: its file.
      bad: called with the error of a value that is not UTF-8, and of one that is cut off.

    Raises:
      UserError: another value is broken, so that it is not known where the next one begins.
    """
    text = _Text(stream)
    array = False
    while char := text.skip():
        if char == "]" or (char == "[" and not array):
            array = char == "["
            text.move(1)
            continue
        where = f"{path}:{text.line}"
        try:
            value, length = text.decode()
        except _UnfinishedError:
            bad(UserError(f"{where}: broken JSON: the file ends inside of this record"))
            return
        except (ValueError, RecursionError) as error:
            reason = str(error)
            if isinstance(error, json.JSONDecodeError):
                where, reason = f"{path}:{text.line_of(error.pos)}", error.msg
            raise UserError(
                f"{where}: broken JSON: {reason}; repair it, or write the file with one record per "
                "line, of which --skip-bad can skip any"
            ) from None
        if not text.is_unicode(length):
            bad(UserError(f"{where}: it is not UTF-8 text"))
        elif value is not None:
            yield text.line, value
        text.move(length)
    if array:
        bad(UserError(f"{path}:{text.line}: broken JSON: the array does not end"))


class _UnfinishedError(Exception):
    """The text ends inside of a value."""


class _Text:
    """The part of a text that is in memory.

    Attributes:
      text: this part.
      at: the place in it up to which values were read.
      line: the line of this place.
    """

    def __init__(self, stream: io.BufferedReader):
        self.text, self.at, self.line = "", 0, 1
        self._stream = stream
        # Bytes that are not UTF-8 become surrogates.
        self._characters = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._decode = json.JSONDecoder().raw_decode

    def line_of(self, position: int) -> int:
        """Returns the line of a position in `text`."""
        return self.line + self.text.count("\n", self.at, position)

    def move(self, length: int) -> None:
        """Moves on by `length` characters."""
        self.line = self.line_of(self.at + length)
        self.at += length

    def skip(self) -> str:
        """Moves behind blanks and commas; returns the character there, "" at the end."""
        while True:
            match = _BETWEEN.match(self.text, self.at)
            self.move(match.end() - self.at if match else 0)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def decode(self) -> tuple[Any, int]:
        """Returns the value that begins here, and its length.

        Raises:
          _UnfinishedError: the text ends inside of it.
          ValueError: it is broken or too long.
          RecursionError: it is nested too deeply.
        """
        while True:
            try:
                value, end = self._decode(self.text, self.at)
                return value, end - self.at
            except json.JSONDecodeError as error:
                # An error at the end of this part may only mean that the value continues.
                near = error.pos > len(self.text) - 16
                if not near and not error.msg.startswith("Unterminated"):
                    raise
            if len(self.text) - self.at >= LONGEST:
                raise ValueError(_TOO_LONG)
            if not self._more():
                raise _UnfinishedError

    def is_unicode(self, length: int) -> bool:
        """Returns whether the next `length` characters were UTF-8."""
        try:
            self.text[self.at : self.at + length].encode()
        except UnicodeEncodeError:
            return False
        return True

    def _more(self) -> bool:
        """Reads on, and forgets what is before `at`; whether there was more."""
        rest, new, data = self.text[self.at :], "", b"more"
        while data and len(new) <= len(rest):  # twice as much, as its decoding begins anew
            data = self._stream.read1(_CHUNK)
            new += self._characters.decode(data, final=not data)
        self.text, self.at = rest + new, 0
        return bool(new)
