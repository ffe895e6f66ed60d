"""What a person sees of a measurement: tables and a figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from eval.measure import Summary
from eval.tree_size import Tree
from train.outputs import new_figure, save_figure

_STAGES = {"prefill": "prefill", "device": "draft+verify", "search": "search", "host": "host"}


def speedup_table(title: str, rows: dict[str, Summary]) -> Table:
    """One row a prompt group; the last pools all prompts."""
    table = _table(title, "plain tok/s", "DART tok/s", "speed-up", "tau", "accepted", "identical")
    table.caption = (
        "tok/s: median over repeats and half the spread, prefill included\n"
        "tau: tokens per verification, bonus token included\n"
        "accepted: draft tokens per verification"
    )
    for name, row in rows.items():
        table.add_row(
            name,
            _spread(row.plain),
            _spread(row.dart),
            f"{row.speedup:.2f}x",
            f"{row.tau:.2f}",
            f"{row.accepted:.2f}",
            f"{row.identical}/{row.prompts}",
            end_section=row is list(rows.values())[-2],
        )
    return table


def time_table(rows: dict[str, Summary]) -> Table:
    """Which part of DART's time each stage took."""
    table = _table("Where DART's time went", *_STAGES.values())
    if "host" not in rows["all"].shares:
        table.caption = "one program: the hand-over to the host is part of draft+verify"
    for name, row in rows.items():
        shares = (row.shares.get(stage) for stage in _STAGES)
        table.add_row(name, *("-" if share is None else f"{share:.1%}" for share in shares))
    return table


def tree_table(rates: Mapping[Tree, float]) -> Table:
    """What the choice of the tree was made from."""
    table = _table("Trees on warm-up prompts", "level decay", "DART tok/s", first="nodes")
    for tree, rate in rates.items():
        table.add_row(str(tree.nodes), f"{tree.level_decay:g}", f"{rate:,.0f}")
    return table


def sweep_table(rows: Sequence[tuple[Tree, bool, str, Summary]]) -> Table:
    """Trees with and without the n-gram model, and the two loops."""
    columns = ("decay", "n-gram", "loop", "tau", "DART tok/s", "speed-up", "identical")
    table = _table("Tree sizes, n-gram model and loops", *columns, first="nodes")
    for tree, ngram, loop, row in rows:
        table.add_row(
            str(tree.nodes),
            f"{tree.level_decay:g}",
            "yes" if ngram else "no",
            loop,
            f"{row.tau:.2f}",
            _spread(row.dart),
            f"{row.speedup:.2f}x",
            f"{row.identical}/{row.prompts}",
        )
    return table


def progress_bar(console: Console) -> Progress:
    """Of long work: what is done, how much of it and for how long; gone when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def write_plot(path: Path, rows: dict[str, Summary]) -> None:
    """Draws speed-ups per group and where DART's time went; needs matplotlib."""
    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    names = list(rows)
    left.bar(names, [row.speedup for row in rows.values()], color="#4477aa")
    for n, row in enumerate(rows.values()):
        left.annotate(f"tau {row.tau:.2f}", (n, row.speedup), ha="center", va="bottom")
    left.axhline(1, color="black", linewidth=0.8)
    left.set(ylabel="speed-up over plain decoding", title="Speed-up")
    left.margins(y=0.15)
    bottom = [0.0] * len(names)
    for stage, label in _STAGES.items():
        shares = [100 * row.shares.get(stage, 0.0) for row in rows.values()]
        right.bar(names, shares, bottom=bottom, label=label)
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    right.set(ylabel="% of DART's time", title="Where the time went")
    right.legend(loc="lower right")
    save_figure(figure, path)


def _table(title: str, *columns: str, first: str = "prompts") -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _spread(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f} ±{(max(rates) - min(rates)) / 2:,.0f}"
