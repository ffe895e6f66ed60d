"""Tables as text and as Markdown, also of other programs."""

from __future__ import annotations

import dataclasses

from rich.box import SIMPLE_HEAD
from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table for the terminal or Markdown; the first column is text, the others are numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    caption: str = ""

    def table(self) -> Table:
        """Returns the table for the terminal."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        table.pad_edge, table.collapse_padding = False, True  # to fit into 80 columns
        table.caption, table.caption_justify = self.caption or None, "left"
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        head = [self.columns, ["---"] + ["---:"] * (len(self.columns) - 1)]
        lines = ["| " + " | ".join(row) + " |" for row in [*head, *self.rows]]
        caption = ["", self.caption.replace("\n", "; ")] if self.caption else []
        return "\n".join([f"**{self.title}**", "", *lines, *caption, ""])
