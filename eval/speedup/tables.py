"""The tables of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

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
        rows.append((group, *[""] * 5))
        for name, row in methods.items():
            speedup = spread(row.speedups, ".2f", "x")
            figures = f"{row.tau:.2f}", f"{row.identical}/{row.prompts}"
            if name == PLAIN:
                speedup, *figures = [""] * 3
            token = spread([1000 * each for each in row.token_seconds], ".2f")
            cells = spread(row.rates), speedup, token, *figures
            rows.append((f"  {METHODS[name].title}", *cells))
    caption = (
        "tok/s: median over repeats and half the spread, prefill included\n"
        "speed-up: ratio of the rates, likewise\n"
        "ms/token: after each prompt's first token, without the prefill\n"
        "tau: tokens per verification, bonus included\n"
        "same: prompts whose output equals plain decoding's, token for token"
    )
    return table(title, ("prompts", "tok/s", "speed-up", "ms/token", "tau", "same"), rows, caption)


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


def limits(setting: Setting, step_bytes: int) -> list[str]:
    """Says what the machine allows: a line on plain decoding, and one for each method that drafts.

    Args:
      setting: the results.
      step_bytes: bytes of the weights that a plain step reads.
    """
    seconds = setting.all[PLAIN].step_seconds
    rate = step_bytes / seconds / 1e9
    lines = [
        f"A plain step takes {1e3 * seconds:.2f} ms; its weights, {step_bytes / 1e6:,.0f} MB, are "
        f"read at {rate:,.1f} GB/s."
    ]
    for name, row in setting.all.items():
        cost = setting.step_costs[name]
        if row.nodes > 0:
            lines.append(
                f"{METHODS[name].title}: {row.nodes:.1f} nodes and their draft take "
                f"{cost - 1:.2f} plain steps, {(cost - 1) / row.nodes:.2f} each; if they took "
                f"nothing, a step's {row.tau:.2f} tokens would be {row.tau:.2f}x."
            )
    return lines


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


# Title of a table of all settings -> its figure.
_FIGURES: dict[str, Callable[[Summary], float]] = {
    "tau": lambda row: row.tau,
    "ms per token, without the prefill": lambda row: row.token_ms,
    "speed-up, without the prefill": lambda row: statistics.median(row.decoding_speedups),
    "speed-up": lambda row: row.speedup,
}


def overview_tables(settings: Sequence[Setting]) -> list[Table]:
    """Returns a table for each of four figures, with a row per setting and a column per method;
    then the means over the benchmarks, if there are several."""
    names = list(settings[0].all)
    by_kind = kinds(settings)
    several = any(len(some) > 1 for some in by_kind.values())
    groups = [("mean", some) for some in by_kind.values()] if several else []
    groups = [(setting.workload.title, [setting]) for setting in settings] + groups
    tables = []
    for title, figure in _FIGURES.items():
        rows = [
            (
                name,
                f"{mean_tokens(some):,.0f}",
                f"{some[0].temperature:g}",
                str(some[0].batch_size),
                *(f"{mean(figure, some, method):.2f}" for method in names),
            )
            for name, some in groups
        ]
        columns = ("benchmark", "tokens", "T", "batch", *(METHODS[name].title for name in names))
        tables.append(table(f"All settings: {title}", columns, rows, "tokens: of the mean prompt"))
    return tables


def kinds(settings: Sequence[Setting]) -> dict[tuple[int | None, float, int], list[Setting]]:
    """Returns the settings that differ only in the benchmark, by what they share."""
    groups: dict[tuple[int | None, float, int], list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.kind, []).append(setting)
    return groups


def mean(figure: Callable[[Summary], float], settings: Sequence[Setting], method: str) -> float:
    """Returns the mean of a method's figure over settings, each over all its prompts."""
    return statistics.mean(figure(setting.all[method]) for setting in settings)


def mean_tokens(settings: Sequence[Setting]) -> float:
    """Returns the mean over settings of their prompts' mean length, in tokens."""
    return statistics.mean(setting.workload.mean_tokens for setting in settings)
