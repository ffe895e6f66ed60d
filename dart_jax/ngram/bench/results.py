"""The table of results, next to those of the reference implementation."""

from __future__ import annotations

import dataclasses

from rich import box
from rich.table import Table

MADE_UP = "made up: "  # prefix of results for a made-up model

# Results of the reference implementation, see benchmark.py.
REFERENCE = {
    "bytes per n-gram": "36",
    "memory, bytes per n-gram": "142",
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
    """The results, in order of measurement."""

    def __init__(self):
        self.rows: list[Row] = []

    def add(self, what: str, value: float, text: str, bar: str = "") -> None:
        """Adds one result."""
        self.rows.append(Row(what, value, text, bar))

    def table(self) -> Table:
        """Returns a table of all results, next to the reference's."""
        table = Table("", "dart_jax", "goal", "reference", box=box.SIMPLE)
        for row in self.rows:
            table.add_row(
                row.what, row.text, row.bar, REFERENCE.get(row.what.removeprefix(MADE_UP), "")
            )
        return table
