"""The table of results, with the reference implementation's figures beside them."""

from __future__ import annotations

import dataclasses

from rich import box
from rich.table import Table

MADE_UP = "made up: "  # before what is measured of a made-up model

# The reference's, as above.
REFERENCE = {
    "bytes an n-gram": "36",
    "memory, bytes an n-gram": "142",
    "open": "2,000 ms",
    "search, C++": "960 us",
    "search, Python": "1,059 us; as shipped 2,888",
    "building": "1.7 M tokens/s",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    value: float
    text: str
    bar: str


class Results:
    """What was measured, in order."""

    def __init__(self):
        self.rows: list[Row] = []

    def add(self, what: str, value: float, text: str, bar: str = "") -> None:
        """Notes one figure."""
        self.rows.append(Row(what, value, text, bar))

    def table(self) -> Table:
        """All of it, with the reference's figures beside."""
        table = Table("", "dart_jax", "wanted", "reference", box=box.SIMPLE)
        for row in self.rows:
            table.add_row(
                row.what, row.text, row.bar, REFERENCE.get(row.what.removeprefix(MADE_UP), "")
            )
        return table
