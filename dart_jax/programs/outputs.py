"""Output files of programs: checked before the work begins, and written atomically."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.files import check_writable, write_atomically

_DRAWN = (".png", ".pdf", ".svg")


def check_outputs(*texts: Path | None, drawing: Path | None = None) -> None:
    """Tries, before anything is measured, whether all outputs can be written.

    Args:
      texts: files of the requested reports.
      drawing: file of the requested figure, if any.

    Raises:
      UserError: a file cannot be written, or is named twice; or figures cannot be drawn.
    """
    paths = [path for path in (*texts, drawing) if path is not None]
    for place, path in enumerate(paths):
        check_writable(path)
        if path.resolve() in [other.resolve() for other in paths[:place]]:
            raise UserError(f"{path} is named for two outputs; give each its own file")
    if drawing and drawing.suffix not in _DRAWN:
        raise UserError(f"--plot writes .png, .pdf or .svg, not {drawing.name!r}")
    if drawing and importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib: pip install 'dart-jax[plot]'")


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON report, as `write_bytes`."""
    write_bytes(path, (json.dumps(content, indent=2, default=str) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes an output atomically.

    Raises:
      UserError: it could not be written, although `check_outputs` could; then it lies in a
        temporary file, which the message names.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror}"
        try:
            with tempfile.NamedTemporaryFile(
                prefix="dart_jax-", suffix=f"-{path.name}", delete=False
            ) as kept:
                kept.write(data)
        except OSError as second:
            raise UserError(
                f"{reason}; nor can {tempfile.gettempdir()}: {second.strerror}"
            ) from None
        raise UserError(f"{reason}; what it would hold is in {kept.name}") from None
