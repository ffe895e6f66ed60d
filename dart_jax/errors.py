"""Bad user input: the exception, the warning, the cure of a wrong name, and the check of a package
that is optional."""

from __future__ import annotations

import difflib
import importlib.util
import warnings
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The message is one line and says what to do.

    Programs print it without a traceback: see `dart_jax.programs.command_line`.
    """


class InputWarning(UserWarning):
    """A part of the input is not used, and the format's own programs do not use it either."""


def warn(message: str) -> None:
    """Issues an `InputWarning` of one line, which programs print once."""
    warnings.warn(message, InputWarning, stacklevel=2)


def meant(name: str, names: Iterable[str], otherwise: str) -> str:
    """Returns what to say of a name that does not exist: the nearest one that does, as a question,
    or `otherwise`."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def require(package: str, extra: str, what: str) -> None:
    """Raises UserError if what needs a package of one of our extras lacks it."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{what} needs {package}: pip install 'dart-jax[{extra}]'")
