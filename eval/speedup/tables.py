"""The tables of a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from eval.methods.measure import GRAM, LITTLE, Summary
from eval.methods.registry import METHODS, PLAIN
from eval.speedup.measurement import Setting

STAGES = {"prefill": "prefill", "device": "draft+verify", "search": "search"}


def speedup_table(title: str, groups: Mapping[str, Mapping[str, Summary]]) -> Table:
    """Returns a row per prompt group and method; the last group pools all prompts."""
    rows: list[tuple[str, ...]] = []
    for group, methods in groups.items():
        rows.append((group, *[""] * 4))
        for name, row in methods.items():
            figures = (
                spread(row.speedups, ".2f", "x"),
                f"{row.tau:.2f}",
                f"{row.identical}/{row.prompts}",
            )
            cells = figures if name != PLAIN else [""] * 3
            rows.append((f"  {METHODS[name].title}", spread(row.rates), *cells))
    caption = (
        "tok/s: median over repeats and half the spread, prefill included\n"
        "speed-up: ratio of the rates, likewise\n"
        "tau: tokens per verification, bonus included\n"
        "same: prompts whose output equals plain decoding's, token for token"
    )
    return table(title, ("prompts", "tok/s", "speed-up", "tau", "same"), rows, caption)


def time_table(rows: Mapping[str, Summary]) -> Table:
    """Returns the share of each stage in each method's time."""
    cells = [
        (
            METHODS[name].title,
            *(f"{row.shares[stage]:.1%}" if stage in row.shares else "-" for stage in STAGES),
        )
        for name, row in rows.items()
    ]
    caption = "draft+verify includes copies to the host"
    return table("Time by stage", ("method", *STAGES.values()), cells, caption)


def repetition_table(rows: Mapping[str, Summary]) -> Table:
    """Returns how much the texts repeat themselves, and tau where they hardly do."""
    cells = [
        (
            METHODS[name].title,
            f"{row.repeated:.0%}",
            f"{row.tau:.2f}",
            f"{row.varied}/{row.prompts}",
            f"{row.tau_varied:.2f}" if row.varied else "-",
        )
        for name, row in rows.items()
    ]
    caption = (
        f"repeated: {GRAM}-grams that occurred before in the same text\n"
        f"varied texts: those of which at most {LITTLE:.0%} are repeated"
    )
    columns = ("method", "repeated", "tau", "varied texts", "their tau")
    return table("Repetitions", columns, cells, caption)


def overview_table(settings: Sequence[Setting]) -> Table:
    """Returns speed-up and tau of every method, one row per setting."""
    names = [name for name in settings[0].all if name != PLAIN]
    rows = [
        (
            setting.workload.title,
            f"{setting.temperature:g}",
            str(setting.batch_size),
            *(
                f"{row.speedup:.2f}x, {row.tau:.2f}"
                for row in (setting.all[name] for name in names)
            ),
        )
        for setting in settings
    ]
    columns = ("benchmark", "T", "batch", *(METHODS[name].title for name in names))
    return table("All settings: speed-up, tau", columns, rows)
