"""The tables of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table

from dart_jax.programs.spread import spread
from dart_jax.programs.tables import table
from eval.benchmarks.registry import PAPER
from eval.methods.measure import GRAM, LITTLE, Summary
from eval.methods.registry import METHODS, PLAIN
from eval.methods.tree_size import Tree
from eval.speedup.setting import Setting

STAGES = {"prefill": "prefill", "device": "draft+verify", "search": "search", "host": "host"}

# The paper's results (arXiv 2601.19278): Qwen3, temperature 0, batch 1, one H20-3e, against plain
# decoding in eager PyTorch. Speed-ups of DART in the order of PAPER, their mean, and tau; then
# EAGLE-3's mean and tau.
_PAPER = {
    "qwen3-1.7b": ((2.60, 2.90, 2.79, 2.28, 2.52, 2.64, 2.57), 2.61, 3.60, 2.01, 3.80),
    "qwen3-4b": ((2.55, 3.45, 3.25, 2.57, 2.50, 3.06, 2.73), 2.87, 3.87, 2.12, 3.54),
    "qwen3-8b": ((2.51, 3.40, 2.80, 2.64, 2.34, 3.09, 2.22), 2.71, 3.61, 2.20, 3.72),
    "qwen3-14b": ((2.73, 3.44, 2.79, 2.69, 2.50, 2.98, 2.20), 2.77, 3.67, 2.02, 3.48),
    "qwen3-32b": ((2.03, 2.88, 2.37, 2.42, 2.46, 2.56, 2.24), 2.42, 3.76, 2.11, 3.85),
}


def paper_speedups(target: str) -> dict[str, dict[str, float]]:
    """Returns the paper's results for a target, by its name: method -> benchmark -> speed-up.

    Next to the benchmarks there are `mean` and `tau`. Empty for a target that is not in the paper.
    """
    name = target.rstrip("/").rsplit("/", 1)[-1].lower()
    if name not in _PAPER:
        return {}
    each, mean, tau, eagle_mean, eagle_tau = _PAPER[name]
    return {
        "dart": {**dict(zip(PAPER, each, strict=True)), "mean": mean, "tau": tau},
        "eagle3": {"mean": eagle_mean, "tau": eagle_tau},
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
    fused = not any("host" in row.shares for row in rows.values())
    caption = "fused loop: draft+verify includes the copy to the host" if fused else ""
    return table("Time by stage", ("method", *STAGES.values()), cells, caption)


def repetition_table(rows: Mapping[str, Summary]) -> Table:
    """Returns how much the texts repeat themselves, and tau where they hardly do."""
    cells = [
        (
            METHODS[name].title,
            f"{row.repeated:.0%}",
            f"{row.tau:.2f}",
            f"{row.varied}/{row.prompts}",
            _tau_varied(row),
        )
        for name, row in rows.items()
    ]
    caption = (
        f"repeated: {GRAM}-grams that occurred before in the same text\n"
        f"varied texts: those of which at most {LITTLE:.0%} are repeated"
    )
    columns = ("method", "repeated", "tau", "varied texts", "their tau")
    return table("Repetitions", columns, cells, caption)


def _tau_varied(row: Summary) -> str:
    return f"{row.tau_varied:.2f}" if row.varied else "-"


def tree_table(method: str, seconds: Mapping[Tree, float]) -> Table:
    """Returns the median seconds of each tree tried for a method."""
    rows = (
        (str(tree.nodes), "-" if tree.level_decay is None else f"{tree.level_decay:g}", f"{s:.3f}")
        for tree, s in seconds.items()
    )
    title = f"{method}: trees on warm-up prompts"
    return table(title, ("nodes", "level decay", "seconds"), rows)


def overview_table(settings: Sequence[Setting]) -> Table:
    """Returns speed-up and tau of every method, one row per setting."""
    names = [name for name in settings[0].all if name != PLAIN]
    rows = (
        (
            setting.title,
            f"{setting.temperature:g}",
            str(setting.batch_size),
            *(f"{setting.all[name].speedup:.2f}x, {setting.all[name].tau:.2f}" for name in names),
        )
        for setting in settings
    )
    columns = ("benchmark", "T", "batch", *(METHODS[name].title for name in names))
    return table("All settings: speed-up, tau", columns, rows)


def markdown(target: str, settings: Sequence[Setting]) -> str:
    """Returns tables in the paper's layout: one per temperature and batch size, a column per
    benchmark, and below our methods the paper's results if it measured this target."""
    tables = []
    for temperature, batch in dict.fromkeys((s.temperature, s.batch_size) for s in settings):
        some = [s for s in settings if (s.temperature, s.batch_size) == (temperature, batch)]
        known = (temperature, batch) == (0, 1) and any(s.bench in PAPER for s in some)
        paper = paper_speedups(target) if known else {}
        repetitions = "".join(map(_repetitions, some))
        layout = _paper_layout(some, paper)
        tables.append(f"T = {temperature:g}, batch {batch}\n\n{layout}\n{repetitions}")
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


def _paper_layout(settings: Sequence[Setting], paper: Mapping[str, Mapping[str, float]]) -> str:
    head = ["speed-up", *(setting.title for setting in settings), "mean", "tau", "identical"]
    lines = [head, ["---"] * len(head)]
    for name in (name for name in settings[0].all if name != PLAIN):
        rows = [setting.all[name] for setting in settings]
        mean = statistics.mean(row.speedup for row in rows)
        tau = statistics.mean(row.tau for row in rows)
        same = f"{sum(row.identical for row in rows)}/{sum(row.prompts for row in rows)}"
        cells = [f"{row.speedup:.2f}" for row in rows]
        lines.append([METHODS[name].title, *cells, f"{mean:.2f}", f"{tau:.2f}", same])
    for name, theirs in paper.items():
        cells = [f"{theirs[s.bench]:.2f}" if s.bench in theirs else "" for s in settings]
        title = f"the paper's {METHODS[name].title}, all seven"
        lines.append([title, *cells, f"{theirs['mean']:.2f}", f"{theirs['tau']:.2f}", ""])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
