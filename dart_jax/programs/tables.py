"""Tables of measurements, for the terminal and to be pasted into Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import MARKDOWN
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
    shown = Table(title=title, title_justify="left", box=MARKDOWN)
    shown.caption, shown.caption_justify = caption or None, "left"
    for place, column in enumerate(columns):
        shown.add_column(column, justify="right" if place else "left")
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown
