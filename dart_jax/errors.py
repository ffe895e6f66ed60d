"""The one exception a user of the programs is meant to see, and how programs end on it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


class UserError(Exception):
    """Bad input, told in one line that says what to do."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Around a program: a `UserError` is printed without a traceback and ends it with status 2."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
