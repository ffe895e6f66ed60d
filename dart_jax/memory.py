"""Amounts of memory: written by people, and used by processes."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

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


def peak_memory() -> int:
    """The most this process has had resident, in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux's getrusage begins with what the parent process had
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
