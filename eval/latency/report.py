"""Tables as text and as Markdown, also of other programs, and the figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dart_jax.programs.figures import COLOURS, SMALL, new_figure, note
from eval.latency.case import Case
from eval.latency.hardware import Hardware

_STAGES = (
    "ms: median; ratio: over the limit, the larger of bytes over the measured bandwidth of a copy "
    "and operations over the measured rate of a product; plain: in plain steps. A tree pays off "
    "where it yields more tokens than its step and search take plain steps."
)


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


def stage_grid(case: Case, hardware: Hardware) -> Grid:
    """Returns a table with a row per stage and tree size."""
    plain, rows = case.find("plain step", 0).times.seconds, []
    for row in case.rows:
        seconds, cells = row.times.seconds, ["-"] * 4
        if row.cost is not None:
            limit = row.cost.limit(hardware.bandwidth, hardware.rate)
            values = row.cost.bytes / 1e6, row.cost.operations / 1e9, 1e3 * limit, seconds / limit
            cells = [number(value) for value in values]
        spread = "-".join(number(1e3 * value) for value in row.times.quartiles)
        first = [row.stage, str(row.nodes or "-"), number(1e3 * seconds), spread]
        rows.append([*first, *cells, number(seconds / plain)])
    columns = ["stage", "nodes", "ms", "quartiles", "MB", "Gop", "limit", "ratio", "plain"]
    return Grid(case.title, columns, rows, _STAGES)


def draw(cases: Sequence[Case], hardware: Hardware) -> Any:
    """Draws the stages of a step on top of each other, for each tree, next to the step's limit."""
    figure = new_figure(9, 4)
    axes, names, width = figure.subplots(), [], 0.36
    trees = [(case, nodes) for case in cases for nodes in case.nodes]
    for at, (case, nodes) in enumerate(trees):
        plain, bottom = case.find("plain step", 0).times.seconds, 0.0
        stages = [row for row in case.rows if row.nodes == nodes and row.stage != "step"]
        for row, colour in zip(stages, COLOURS, strict=False):
            height, label = row.times.seconds / plain, None if at else row.stage
            axes.bar(at - width / 2, height, width, bottom=bottom, color=colour, label=label)
            bottom += height
        step = case.find("step", nodes)
        assert step.cost is not None
        limit = step.cost.limit(hardware.bandwidth, hardware.rate) / plain
        label = None if at else "limit of the step"
        axes.bar(at + width / 2, limit, width, color="#dddddd", edgecolor="#555555", label=label)
        names.append(f"{case.shape}\nbatch {case.batch}\ncontext {case.context}\n{nodes} nodes")
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(names)), names, fontsize=SMALL)
    axes.set(ylabel="in plain steps", title="Stages of a step, and its limit")
    figure.legend(loc="outside upper center", ncols=4)
    note(figure, "Medians. Dashed: a plain step.")
    return figure


def number(value: float) -> str:
    """Formats three significant digits, with at most three decimals."""
    decimals = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"
