"""The tables of a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from eval.benchmarks.registry import BENCHMARKS, PAPER
from eval.methods.measure import GRAM, LITTLE, Summary
from eval.methods.registry import METHODS, PLAIN
from eval.methods.tree_size import Tree
from eval.speedup.setting import Setting

STAGES = {"prefill": "prefill", "device": "draft+verify", "search": "search"}

# The paper's results (arXiv 2601.19278): Qwen3, temperature 0, batch 1, one H20-3e, against plain
# decoding in eager PyTorch. Speed-ups of DART in the order of PAPER, their mean, and tau; then
# EAGLE-3's mean and tau.
_PAPER: dict[str, tuple[tuple[float, ...], float, float, float, float]] = {
    "qwen3-1.7b": ((2.60, 2.90, 2.79, 2.28, 2.52, 2.64, 2.57), 2.61, 3.60, 2.01, 3.80),
    "qwen3-4b": ((2.55, 3.45, 3.25, 2.57, 2.50, 3.06, 2.73), 2.87, 3.87, 2.12, 3.54),
    "qwen3-8b": ((2.51, 3.40, 2.80, 2.64, 2.34, 3.09, 2.22), 2.71, 3.61, 2.20, 3.72),
    "qwen3-14b": ((2.73, 3.44, 2.79, 2.69, 2.50, 2.98, 2.20), 2.77, 3.67, 2.02, 3.48),
    "qwen3-32b": ((2.03, 2.88, 2.37, 2.42, 2.46, 2.56, 2.24), 2.42, 3.76, 2.11, 3.85),
}


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


def tree_table(method: str, seconds: Mapping[Tree, float]) -> Table:
    """Returns the median seconds of each tree tried for a method."""
    rows = (
        (str(tree.nodes), "-" if tree.level_decay is None else f"{tree.level_decay:g}", f"{s:.3f}")
        for tree, s in seconds.items()
    )
    title = f"{method}: trees on warm-up prompts"
    return table(title, ("nodes", "level decay", "seconds"), rows)


def overview_table(target: str, settings: Sequence[Setting]) -> Table:
    """Returns speed-up and tau of every method, one row per setting, and below them the paper's if
    it measured this target."""
    names = [name for name in settings[0].all if name != PLAIN]
    rows = [
        (
            setting.workload.title,
            f"{setting.temperature:g}",
            str(setting.batch_size),
            *(_cell(setting.all[name].speedup, setting.all[name].tau) for name in names),
        )
        for setting in settings
    ]
    for title, cells in paper_cells(target).items():
        rows.append((f"{title}, in the paper", "0", "1", *(cells.get(name, "") for name in names)))
    columns = ("benchmark", "T", "batch", *(METHODS[name].title for name in names))
    return table("All settings: speed-up, tau", columns, rows)


def paper_cells(target: str) -> dict[str, dict[str, str]]:
    """Returns the paper's results for a target, by its name: benchmark -> method -> cell; empty for
    a target that is not in the paper."""
    name = target.rstrip("/").rsplit("/", 1)[-1].lower()
    if name not in _PAPER:
        return {}
    speedups, mean, tau, eagle3_mean, eagle3_tau = _PAPER[name]
    titles = (BENCHMARKS[name].title for name in PAPER)
    each = {title: {"dart": f"{x:.2f}x"} for title, x in zip(titles, speedups, strict=True)}
    return each | {
        "mean of these": {"dart": _cell(mean, tau), "eagle3": _cell(eagle3_mean, eagle3_tau)}
    }


def _cell(speedup: float, tau: float) -> str:
    return f"{speedup:.2f}x, {tau:.2f}"
