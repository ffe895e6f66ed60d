"""Amounts of memory: written by people, and used by processes."""

from __future__ import annotations

import re
import resource
import sys

from dart_jax.errors import UserError


def parse_memory(text: str) -> int:
    """Bytes that a text like 4GB, 1.5GiB or 800M stands for.

    Raises:
      UserError: it is no such text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UserError(f"memory is given like 4GB or 800MB, got {text!r}")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))
