"""Bad user input: the exception, the warning, and the check of a package that is optional."""

from __future__ import annotations

import importlib.util
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


def require(package: str, extra: str, what: str) -> None:
    """Raises UserError if what needs a package of one of our extras lacks it."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{what} needs {package}: pip install 'dart-jax[{extra}]'")
