"""Server-sent events, read as they arrive: https://html.spec.whatwg.org/#server-sent-events."""

from __future__ import annotations

import re

_LINE = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Takes a stream's bytes in pieces of any size; returns the data of every complete event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[str]:
        """What the events hold that end in this piece.

        Comments, other fields and events without data are left out.
        """
        rest, place, found = self._rest + piece, 0, []
        for end in _LINE.finditer(rest):
            # A \n may still follow in the next piece, which belongs to this line's end.
            if end[0] == b"\r" and end.end() == len(rest):
                break
            self._line(rest[place : end.start()], found)
            place = end.end()
        self._rest = rest[place:]
        return found

    def _line(self, line: bytes, found: list[str]) -> None:
        if not line:
            if self._data:
                found.append(b"\n".join(self._data).decode("utf-8", "replace"))
                self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
