"""The report: tables, as text and as Markdown, and a figure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dart_jax.programs.figures import (
    COLOURS,
    SMALL,
    Spread,
    error_bars,
    new_panels,
    note,
    told,
)
from eval.latency.case import Case, Row
from eval.latency.derived import HOST, PARTS, Derived
from eval.latency.hardware import Hardware
from eval.latency.shapes import parameters, target_of

CLOCK = (
    "device: time of many calls inside one jitted loop, divided by their number; for to host, "
    "search and to device: wall time of a call. inside: these three as one callback from the "
    "program, as in the fused loop. Median (quartiles) of the repeats. wall: a single call, "
    "dispatched and waited for. limit: the larger of bytes over the measured copy bandwidth and "
    "operations over the measured matmul rate."
)

_SIDE_BY_SIDE = 4  # with more cases, the two plots are stacked
_STAGES = "in ms; ratio: device over limit"
_TREES = (
    "verify, step: time over a plain step's; parts: sum of the device stages, ms; "
    "total: step (wall), host copies and search, ms; then speed-ups"
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


def hardware_line(hardware: Hardware) -> str:
    """What was measured of the device's limits, in a line."""
    count = hardware.sharers
    line = (
        f"copy of {hardware.copied / 2**20:,.0f} MiB: {count * hardware.bandwidth / 1e9:,.1f} GB/s "
        f"read and written; {hardware.dtype} product of {hardware.size} x {hardware.size}: "
        f"{count * hardware.rate / 1e12:,.3g} Top/s"
    )
    if count == 1:
        return line
    return f"{line}; {count} virtual devices share this machine: limits are for 1/{count} of it"


def heading(case: Case) -> str:
    """What a case is, in a line."""
    count = parameters(target_of(case.shape))
    size = f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.2f} M"
    state = "prompt read" if case.prefilled else "random rows"
    ngram = "n-gram model" if case.ngram else "no n-gram model"
    return (
        f"{case.shape} ({size} parameters, random), context {case.context} ({state}, caches of "
        f"{case.capacity} rows), batch {case.batch}, search with {ngram}{_on(case)}"
    )


def _on(case: Case) -> str:
    """The mesh, if there is one."""
    if case.mesh is None:
        return ""
    return f"; mesh {case.mesh}: MB, Gop and limit are those of one device"


def stage_grid(case: Case, hardware: Hardware) -> Grid:
    """Returns a table with a row per stage."""
    columns = ["stage", "nodes", "device", "quartiles", "wall", "MB", "Gop", "limit"]
    rows = [_stage_cells(row, hardware) for row in case.rows]
    return Grid(heading(case), [*columns, "ratio"], rows, _STAGES)


def _stage_cells(row: Row, hardware: Hardware) -> list[str]:
    times, cost = row.times, row.cost
    lower, upper = times.quartiles
    cells = [
        row.stage,
        "" if row.nodes is None else str(row.nodes),
        _ms(times.seconds),
        f"{_ms(lower)}-{_ms(upper)}",
        _ms(statistics.median(times.wall)) if times.wall else "-",
    ]
    if cost is None:
        return [*cells, "-", "-", "-", "-"]
    limit = cost.limit(hardware.bandwidth, hardware.rate)
    ratio = _ratio(times.seconds / limit)
    return [*cells, _number(cost.bytes / 1e6), _number(cost.operations / 1e9), _ms(limit), ratio]


def tree_grid(case: Case, derived: Derived, taus: Sequence[float]) -> Grid:
    """Returns a table of costs and speed-ups, with a row per tree size."""
    columns = ["nodes", "verify", "step", "parts", "total"]
    columns += [f"tau {tau:g}" for tau in taus]
    rows = [
        [
            str(tree.nodes),
            f"{tree.verify:.2f}",
            f"{tree.step:.2f}",
            _ms(tree.parts),
            _ms(tree.total),
            *(f"{tree.speedup[tau]:.2f}x" for tau in taus),
        ]
        for tree in derived.trees
    ]
    best = f"{_TREES}\nbest: {derived.best} nodes"
    if derived.best_speedup is None:
        best += ", at the same tau for all"
    else:
        best += f", {derived.best_speedup:.2f}x at its given tau"
    return Grid(f"{case.shape}, context {case.context}: speed-up at given tau", columns, rows, best)


class Result(NamedTuple):
    """A case and its derived results."""

    case: Case
    derived: Derived


def draw(results: Sequence[Result], hardware: Hardware) -> Any:
    """Draws the stages of a step next to its limit, and the cost of verification by N."""
    figure, (bars, lines) = new_panels(2, columns=2 if len(results) <= _SIDE_BY_SIDE else 1)
    figure.set_figheight(1.35 * figure.get_figheight())
    _draw_bars(bars, results, hardware)
    _draw_lines(lines, results)
    figure.legend(*bars.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    repeats = len(results[0].case.find("plain").times.values)
    note(figure, f"Error bars: {told('quartiles', repeats)}. Dashed: a plain step.")
    return figure


def _draw_bars(axes: Any, results: Sequence[Result], hardware: Hardware) -> None:
    width = 0.36
    names = []
    for at, (case, _) in enumerate(results):
        nodes = min(case.nodes, key=lambda n: abs(n - 60))
        plain = case.find("plain").times.seconds
        bottom = 0.0
        stages = (*PARTS, "host")
        for number, (stage, colour) in enumerate(zip(stages, COLOURS, strict=False)):
            parts = HOST if stage == "host" else (stage,)
            rows = [case.find(part, nodes).times for part in parts]
            height = sum(times.seconds for times in rows) / plain
            label = "host copies, search" if stage == "host" else stage
            shown = None if at else label
            axes.bar(at - width / 2, height, width, bottom=bottom, color=colour, label=shown)
            # Side by side, since thin stages lie on top of each other.
            place = at - width + width * (number + 0.5) / len(stages)
            sums = [sum(each) for each in zip(*(times.values for times in rows), strict=True)]
            spread = Spread.quartiles([bottom + seconds / plain for seconds in sums])
            error_bars(axes, [place], [spread])
            bottom += height
        annotate = {"ha": "center", "va": "bottom", "fontsize": SMALL}
        above = {"xytext": (0, 5), "textcoords": "offset points", **annotate}
        axes.annotate(f"{_ms(bottom * plain)} ms", (at - width / 2, bottom), **above)
        cost = case.find("step", nodes).cost
        assert cost is not None
        limit = cost.limit(hardware.bandwidth, hardware.rate) / plain
        shown = None if at else "limit of the step"
        axes.bar(at + width / 2, limit, width, color="#dddddd", edgecolor="#555555", label=shown)
        axes.annotate(f"{_ms(limit * plain)}", (at + width / 2, limit), **annotate)
        on = "" if case.mesh is None else f"\n{case.mesh}"
        names.append(f"{case.shape}\ncontext {case.context}\n{nodes} nodes{on}")
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(names)), names, fontsize=SMALL)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set(ylabel="in plain steps", title="Stages of a step, and its limit")
    axes.margins(y=0.12)


def _draw_lines(axes: Any, results: Sequence[Result]) -> None:
    shapes = list(dict.fromkeys(case.shape for case, _ in results))
    contexts = list(dict.fromkeys(case.context for case, _ in results))
    styles = ("o-", "s--", "^:", "v-.")
    ticks: set[int] = set()
    for case, derived in results:
        nodes = [tree.nodes for tree in derived.trees]
        ticks.update(nodes)
        colour = COLOURS[shapes.index(case.shape) % len(COLOURS)]
        axes.plot(
            nodes,
            [tree.verify for tree in derived.trees],
            styles[contexts.index(case.context) % len(styles)],
            color=colour,
            label=f"{case.shape}, context {case.context}",
        )
        plain = case.find("plain").times.seconds
        verified = [[s / plain for s in case.find("verify", n).times.values] for n in nodes]
        error_bars(axes, nodes, [Spread.quartiles(values) for values in verified], colour)
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [str(tick) for tick in sorted(ticks)])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="nodes", ylabel="in plain steps", title="Verification by tree size")
    axes.legend(fontsize=SMALL)


def _ms(seconds: float) -> str:
    """Formats seconds as milliseconds, with at most three decimals."""
    return _number(1e3 * seconds)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else _number(value)


def _number(value: float) -> str:
    """Formats three significant digits, with at most three decimals."""
    decimals = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"
