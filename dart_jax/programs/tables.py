"""Tables of measurements, for the terminal and to be pasted into Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import MARKDOWN, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = ""
) -> Table:
    """Returns a table whose first column is text and whose others are numbers.

    Args:
      title: above it.
      columns: their names.
      rows: a cell for each column.
      caption: below it; defines the columns.
    """
    grid = Table(title=title, title_justify="left", box=MARKDOWN)
    grid.caption, grid.caption_justify = caption or None, "left"
    for place, column in enumerate(columns):
        grid.add_column(column, justify="right" if place else "left")
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def narrow(*args: Any) -> Table:
    """Returns such a table with less between its columns, so that many of them fit into 80."""
    grid = table(*args)
    grid.box, grid.pad_edge, grid.collapse_padding = SIMPLE_HEAD, False, True
    for column in grid.columns:
        column.no_wrap = True
    return grid


def show(console: Console, *grids: Table) -> None:
    """Prints tables, each after an empty line: a caption and the next title would look like one."""
    for grid in grids:
        console.print("", grid, sep="\n")


def contents(grid: Table) -> dict[str, Any]:
    """Returns what a table says, as strings: `title`, `columns`, `rows` and `caption`."""
    return {
        "title": str(grid.title or ""),
        "columns": [str(column.header) for column in grid.columns],
        "rows": [list(map(str, row)) for row in zip(*(c.cells for c in grid.columns), strict=True)],
        "caption": str(grid.caption or ""),
    }


def spread(values: Sequence[float], form: str = ",.0f", unit: str = "") -> str:
    """Returns the median and half of the range, such as `1.25x ±0.03`; a single value alone.

    Args:
      values: at least one.
      form: format of both numbers, such as `.2f`.
      unit: follows the median.
    """
    half = f" ±{(max(values) - min(values)) / 2:{form}}" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{unit}{half}"
