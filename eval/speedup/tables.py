"""The tables of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from dart_jax.programs.spread import spread
from eval.benchmarks.registry import BENCHMARKS
from eval.methods.measure import Summary
from eval.methods.registry import METHODS, PLAIN
from eval.methods.repetition import GRAM, LITTLE
from eval.methods.tree_size import Tree
from eval.speedup import paper
from eval.speedup.setting import Setting

STAGES = {"prefill": "prefill", "device": "draft+verify", "search": "search", "host": "host"}


def speedup_table(title: str, groups: Mapping[str, Mapping[str, Summary]]) -> Table:
    """Returns a row per prompt group and method; the last group pools all prompts."""
    columns = ("tok/s", "speed-up", "mean", "tau", "mean", "same")
    table = _table(title, *columns, first="prompts")
    # Narrow enough for 80 columns.
    table.box, table.padding, table.pad_edge = box.SIMPLE, (0, 1), False
    table.columns[0].no_wrap = True
    table.caption = (
        "tok/s: median over repeats and half the spread, prefill included\n"
        "speed-up: ratio of the rates, likewise; mean: mean speed-up per batch\n"
        "tau: tokens per verification, bonus included; mean: mean tau per request\n"
        "same: prompts whose output equals plain decoding's, token for token"
    )
    for group, rows in groups.items():
        table.add_row(f"[bold]{group}")
        for name, row in rows.items():
            cells = (
                spread(row.speedups, ".2f", "x"),
                f"{row.speedup_mean:.2f}x",
                f"{row.tau:.2f}",
                f"{row.tau_by_request:.2f}",
                f"{row.identical}/{row.prompts}",
            )
            cells = cells if name != PLAIN else ()
            table.add_row(
                f"  {METHODS[name].title}",
                spread(row.rates),
                *cells,
                end_section=name == list(rows)[-1],
            )
    return table


def time_table(rows: Mapping[str, Summary]) -> Table:
    """Returns the share of each stage in each method's time."""
    table = _table("Time by stage", *STAGES.values(), first="method")
    if not any("host" in row.shares for row in rows.values()):
        table.caption = "fused loop: draft+verify includes the copy to the host"
    for name, row in rows.items():
        shares = (row.shares.get(stage) for stage in STAGES)
        cells = ("-" if share is None else f"{share:.1%}" for share in shares)
        table.add_row(METHODS[name].title, *cells)
    return table


def repetition_table(rows: Mapping[str, Summary]) -> Table:
    """Returns how much the texts repeat themselves, and tau where they hardly do."""
    columns = ("repeated", "tau", "varied texts", "their tau")
    table = _table("Repetitions", *columns, first="method")
    table.caption = (
        f"repeated: {GRAM}-grams that occurred before in the same text\n"
        f"varied texts: those of which at most {LITTLE:.0%} are repeated"
    )
    for name, row in rows.items():
        cells = f"{row.repeated:.0%}", f"{row.tau:.2f}", f"{row.varied}/{row.prompts}"
        table.add_row(METHODS[name].title, *cells, _tau_varied(row))
    return table


def _tau_varied(row: Summary) -> str:
    return f"{row.tau_varied:.2f}" if row.varied else "-"


def tree_table(method: str, rates: Mapping[Tree, float]) -> Table:
    """Returns the tokens per second of each tree tried for a method."""
    table = _table(f"{method}: trees on warm-up prompts", "level decay", "tok/s", first="nodes")
    for tree, rate in rates.items():
        decay = "-" if tree.level_decay is None else f"{tree.level_decay:g}"
        table.add_row(str(tree.nodes), decay, f"{rate:,.0f}")
    return table


def sweep_table(rows: Sequence[tuple[Tree, bool, str, Summary]]) -> Table:
    """Returns the results of `Speedup.sweep`."""
    columns = ("decay", "n-gram", "loop", "tau", "DART tok/s", "speed-up", "identical")
    table = _table("Tree sizes, n-gram model and loops", *columns, first="nodes")
    for tree, ngram, loop, row in rows:
        table.add_row(
            tree.size,
            f"{tree.level_decay:g}",
            "yes" if ngram else "no",
            loop,
            f"{row.tau:.2f}",
            spread(row.rates),
            f"{row.speedup:.2f}x",
            f"{row.identical}/{row.prompts}",
        )
    return table


def overview_table(settings: Sequence[Setting]) -> Table:
    """Returns speed-up and tau of every method, one row per setting."""
    names = [name for name in settings[0].groups["all"] if name != PLAIN]
    titles = [METHODS[name].title for name in names]
    table = _table("All settings: speed-up, tau", "T", "batch", *titles, first="benchmark")
    for setting in settings:
        cells = (f"{row.speedup:.2f}x, {row.tau:.2f}" for row in map(setting.all.get, names) if row)
        table.add_row(setting.title, f"{setting.temperature:g}", str(setting.batch_size), *cells)
    return table


def markdown(target: str, settings: Sequence[Setting]) -> str:
    """Returns tables in the paper's layout: one per temperature and batch size, a column per
    benchmark, and below our methods the paper's results if it measured this target."""
    tables = []
    for key in dict.fromkeys((s.temperature, s.batch_size) for s in settings):
        some = [s for s in settings if (s.temperature, s.batch_size) == key]
        repetitions = "".join(map(_repetitions, some))
        layout = _paper_layout(target, some, key)
        tables.append(f"T = {key[0]:g}, batch {key[1]}\n\n{layout}\n{repetitions}")
    return "\n".join(tables)


def _repetitions(setting: Setting) -> str:
    plain = setting.all[PLAIN]
    taus = (
        f"{METHODS[name].title} {_tau_varied(row)}"
        for name, row in setting.all.items()
        if name != PLAIN
    )
    return (
        f"{setting.title}: {plain.repeated:.0%} of the {GRAM}-grams occurred before in the same "
        f"text; tau on the {plain.varied} of {plain.prompts} texts with at most {LITTLE:.0%}: "
        f"{', '.join(taus)}\n"
    )


def _paper_layout(target: str, settings: Sequence[Setting], key: tuple[float, int]) -> str:
    names = [name for name in settings[0].all if name != PLAIN]
    benches = [setting.bench for setting in settings]
    head = ["speed-up", *(setting.title for setting in settings), "mean", "tau", "identical"]
    lines = [head, ["---"] * len(head)]
    for name in names:
        rows = [setting.all[name] for setting in settings]
        mean = statistics.mean(row.speedup for row in rows)
        tau = statistics.mean(row.tau for row in rows)
        same = f"{sum(row.identical for row in rows)}/{sum(row.prompts for row in rows)}"
        cells = [f"{row.speedup:.2f}" for row in rows]
        lines.append([METHODS[name].title, *cells, f"{mean:.2f}", f"{tau:.2f}", same])
    if key == (0, 1) and set(benches) & set(BENCHMARKS):
        for name, theirs in paper.speedups(target).items():
            cells = [f"{theirs[b]:.2f}" if b in theirs else "" for b in benches]
            title = f"the paper's {METHODS[name].title}, all seven"
            lines.append([title, *cells, f"{theirs['mean']:.2f}", f"{theirs['tau']:.2f}", ""])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _table(title: str, *columns: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
