"""Tables of many columns, also of other programs."""

from __future__ import annotations

import dataclasses

from rich.box import SIMPLE_HEAD
from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table within 80 columns; the first one is text, the others are numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    caption: str = ""

    def table(self) -> Table:
        """Returns it for the terminal."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        table.pad_edge, table.collapse_padding = False, True  # to fit into 80 columns
        table.caption, table.caption_justify = self.caption or None, "left"
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table
