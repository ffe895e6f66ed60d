"""The style of all figures: size, colours, panels, error bars, the note below, and the file."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dart_jax.programs.outputs import write_bytes

# Distinguishable with colour blindness and in greyscale.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb")
# Inches; a page shows a figure about 800 pixels wide.
WIDTH = 10.0
# Points, the smallest text; everything else has matplotlib's sizes, which are larger.
SMALL = 9.0


class Spread(NamedTuple):
    """The ends of an error bar."""

    lower: float
    upper: float

    @classmethod
    def range(cls, values: Sequence[float]) -> Spread | None:
        """From the least to the greatest of several values; None for a single one."""
        return cls(min(values), max(values)) if len(values) > 1 else None


def new_figure(width: float, height: float) -> Any:
    """Returns an empty figure of the given size in inches; needs matplotlib but no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(number: int, columns: int, height: float = 3.3) -> tuple[Any, list[Any]]:
    """Returns a figure and its panels, in rows that all fill the width.

    Args:
      number: of panels, at least 1.
      columns: most panels in a row.
      height: of a row, in inches.
    """
    rows = -(-number // columns)
    counts = [number // rows + (row < number % rows) for row in range(rows)]
    figure = new_figure(WIDTH, height * rows)
    grid = figure.add_gridspec(rows, math.lcm(*counts))
    panels = []
    for row, count in enumerate(counts):
        wide = grid.ncols // count
        for place in range(count):
            panels.append(figure.add_subplot(grid[row, place * wide : (place + 1) * wide]))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, panels


def error_bars(
    axes: Any,
    places: Sequence[float],
    spreads: Sequence[Spread | None],
    colour: str = "#333333",
) -> None:
    """Draws an error bar at each place whose spread is known."""
    bars = [(x, s) for x, s in zip(places, spreads, strict=True) if s is not None]
    if bars:
        middles = [(spread.lower + spread.upper) / 2 for _, spread in bars]
        halves = [(spread.upper - spread.lower) / 2 for _, spread in bars]
        style = {"fmt": "none", "ecolor": colour, "elinewidth": 1.1, "capsize": 2.5}
        axes.errorbar([x for x, _ in bars], middles, halves, **style)


def told(spread: str, number: int, of: str = "repeat") -> str:
    """Says what the error bars are, such as "range of 3 repeats", or why there are none."""
    return f"{spread} of {number} {of}s" if number > 1 else f"1 {of}: no error bars"


def note(figure: Any, text: str) -> None:
    """Writes a line below the panels: what was measured, and what the error bars are."""
    figure.supxlabel(text, fontsize=SMALL, color="#444444", x=0.01, ha="left")


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure in the format given by the path's suffix, as `outputs.write_bytes`."""
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format=path.suffix[1:])
    write_bytes(path, image.getvalue())
