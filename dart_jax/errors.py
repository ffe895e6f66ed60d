"""The exception for bad user input."""

from __future__ import annotations


class UserError(Exception):
    """Bad input. The message is one line and says what to do.

    Programs print it without a traceback: see `dart_jax.programs.command_line`.
    """
