"""Output files of programs: checked before the work begins, and written atomically."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.files import write_atomically, writing

_DRAWN = (".png", ".pdf", ".svg")


def check_outputs(*texts: Path | None, drawing: Path | None = None, option: str = "--plot") -> None:
    """Raises UserError, before anything is measured, if an output could not be written.

    Args:
      texts: files of the requested reports.
      drawing: file of the requested figure, if any.
      option: the option that names the figure, for error messages.
    """
    for path in filter(None, (*texts, drawing)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise UserError(f"cannot write {path}")
    if drawing and drawing.suffix not in _DRAWN:
        raise UserError(f"{option} writes .png, .pdf or .svg, not {drawing.name!r}")
    if drawing and importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"{option} needs matplotlib: pip install 'dart-jax[plot]'")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON report atomically."""
    with writing("a report", path.parent):
        write_atomically(path, (json.dumps(content, indent=2, default=str) + "\n").encode())


def write_text(path: Path, text: str) -> None:
    """Writes a text report atomically."""
    with writing("a report", path.parent):
        write_atomically(path, text.encode())
