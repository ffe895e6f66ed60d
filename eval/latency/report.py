"""Tables of many columns, also of other programs."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dart_jax.programs.tables import table


def narrow(*args: Any) -> Table:
    """Returns `dart_jax.programs.tables.table` with less between the columns, so that many of them
    fit into 80."""
    grid = table(*args)
    grid.box, grid.pad_edge, grid.collapse_padding = SIMPLE_HEAD, False, True
    for column in grid.columns:
        column.no_wrap = True
    return grid
