"""Figures: colours, and writing to files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from dart_jax.programs.outputs import write_bytes

# Distinguishable with colour blindness and in greyscale.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb")


def new_figure(width: float, height: float) -> Any:
    """Returns an empty figure of the given size in inches; needs matplotlib but no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure in the format given by the path's suffix, as `outputs.write_bytes`."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix[1:])
    write_bytes(path, drawn.getvalue())
