"""The exception for bad user input, and how programs report it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


class UserError(Exception):
    """Bad input. The message is one line and says what to do."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Prints a `UserError` without a traceback and exits with status 2; wraps a whole program."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
