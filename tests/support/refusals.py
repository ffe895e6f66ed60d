"""Errors that users see."""

from collections.abc import Callable
from typing import Any

import pytest

from dart_jax.errors import UserError


def report(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The message of the UserError that a call raises: a single line."""
    with pytest.raises(UserError) as error:
        function(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)
