"""Bad user input: the exception, and the warning."""

from __future__ import annotations

import warnings


class UserError(Exception):
    """Bad input. The message is one line and says what to do.

    Programs print it without a traceback: see `dart_jax.programs.command_line`.
    """


class InputWarning(UserWarning):
    """A part of the input is not used, and the format's own programs do not use it either."""


def warn(message: str) -> None:
    """Issues an `InputWarning` of one line, which programs print once."""
    warnings.warn(message, InputWarning, stacklevel=2)
