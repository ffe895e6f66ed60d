"""Draws the figure of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dart_jax.programs.figures import (
    COLOURS,
    SMALL,
    Spread,
    error_bars,
    new_panels,
    note,
    save_figure,
    told,
)
from eval.methods.measure import Summary
from eval.methods.registry import METHODS, PLAIN
from eval.speedup.measurement import Setting
from eval.speedup.tables import STAGES, kinds, mean, mean_tokens


def write(path: Path, settings: Sequence[Setting]) -> None:
    """Writes the figure to a file. Needs matplotlib."""
    save_figure(draw(settings), path)


def draw(settings: Sequence[Setting]) -> Any:
    """Draws speed-ups, acceptance by position, time by stage, and tau against step cost, all for
    the first context, temperature and batch size; with several contexts also tau and the time per
    token by length."""
    by_kind = kinds(settings)
    first = by_kind[settings[0].kind]
    lengths = [some for kind, some in by_kind.items() if kind[1:] == settings[0].kind[1:]]
    names = [name for name in settings[0].all if name != PLAIN]
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    panels = (_speedups, _acceptance, _time, _cost)
    more = (_tau_by_length, _time_by_length) if len(lengths) > 1 else ()
    figure, axes = new_panels(len(panels) + len(more), columns=2)
    for panel, axis in zip(panels, axes, strict=False):
        panel(axis, first, colours)
    for panel, axis in zip(more, axes[len(panels) :], strict=True):
        panel(axis, lengths, colours)
    if len(names) > 1:
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=min(len(names), 4))
    note(figure, _note(first, names[0]))
    return figure


def _note(settings: Sequence[Setting], name: str) -> str:
    """Says what was measured, and what the error bars are."""
    rows = [setting.all[name] for setting in settings]
    prompts = sum(row.prompts for row in rows)
    several = any(row.tau_error is not None for row in rows)
    tau = "standard error over prompts" if several else "1 prompt: no error bars"
    return (
        f"T = {settings[0].temperature:g}, batch {settings[0].batch_size}, {prompts} "
        f"prompt{'s' * (prompts > 1)}. Error bars: speed-up, "
        f"{told('range', len(rows[0].speedups))}; tau, {tau}."
    )


def _speedups(axis: Any, settings: Sequence[Setting], colours: dict[str, str]) -> None:
    """Bars per benchmark, or per group of prompts if there is only one."""
    if len(settings) > 1:
        groups = {setting.workload.title: setting.all for setting in settings}
    else:
        groups = settings[0].groups
    width = 0.8 / len(colours)
    for n, (name, colour) in enumerate(colours.items()):
        places = [g + (n - (len(colours) - 1) / 2) * width for g in range(len(groups))]
        rows = [methods[name] for methods in groups.values()]
        axis.bar(places, [r.speedup for r in rows], width, color=colour, label=METHODS[name].title)
        error_bars(axis, places, [Spread.range(r.speedups) for r in rows])
        if len(colours) == 1:
            for place, row in zip(places, rows, strict=True):
                top = (place, max(row.speedups))
                axis.annotate(f"tau {row.tau:.2f}", top, ha="center", va="bottom")
    axis.axhline(1, color="black", linewidth=0.8)
    rotated = {"rotation": 30, "ha": "right"} if len(groups) > 5 else {}
    axis.set_xticks(range(len(groups)), list(groups), **rotated)
    axis.set(ylabel="speed-up over plain decoding", title="Speed-up")
    axis.margins(y=0.15)


def _acceptance(axis: Any, settings: Sequence[Setting], colours: dict[str, str]) -> None:
    """Fraction of verifications that accept each drafted position, averaged over the benchmarks."""
    for name, colour in colours.items():
        curves = [setting.all[name].lengths for setting in settings]
        longest = max(map(len, curves))
        reached = [
            statistics.mean(sum(curve[position:]) / max(1, sum(curve)) for curve in curves)
            for position in range(1, longest)
        ]
        axis.plot(range(1, longest), reached, "o-", color=colour, markersize=4)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(
        xlabel="drafted position",
        ylabel="verifications that accept it",
        title="Acceptance by position",
        ylim=(0, 1),
    )


def _time(axis: Any, settings: Sequence[Setting], colours: dict[str, str]) -> None:
    """Share of each stage in each method's time, averaged over the benchmarks."""
    left = [0.0] * len(colours)
    titles = [METHODS[name].title for name in colours]
    stages = zip(STAGES.items(), ("#bbbbbb", "#4477aa", "#ee6677"), strict=True)
    for (stage, label), colour in stages:
        shares = [
            100 * statistics.mean(setting.all[name].shares.get(stage, 0.0) for setting in settings)
            for name in colours
        ]
        if any(shares):
            axis.barh(titles, shares, left=left, label=label, color=colour)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axis.invert_yaxis()  # the first method on top
    axis.grid(visible=False)
    axis.set(xlabel="% of the time", xlim=(0, 100))
    axis.set_title("Time by stage", pad=24)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(STAGES)}
    axis.legend(fontsize=SMALL, frameon=False, **place)


def _cost(axis: Any, settings: Sequence[Setting], colours: dict[str, str]) -> None:
    """Tau against step cost, with lines of equal speed-up; prefill is not included."""
    points = {
        name: [(setting.step_costs[name], setting.all[name].tau) for setting in settings]
        for name in colours
    }
    max_cost = 1.15 * max(cost for some in points.values() for cost, _ in some)
    max_tau = 1.15 * max(tau for some in points.values() for _, tau in some)
    axis.grid(visible=False)
    for speedup in (1, 1.5, 2, 3, 4):
        end = min(max_cost, max_tau / speedup)  # where the line leaves the panel
        axis.plot([0, end], [0, speedup * end], color="#bbbbbb", linewidth=0.8, zorder=0)
        style = (
            {"ha": "left", "va": "center"} if end == max_cost else {"ha": "center", "va": "bottom"}
        )
        axis.annotate(f"{speedup}x", (end, speedup * end), color="#888888", **style)
    for name, some in points.items():
        axis.plot(*zip(*some, strict=True), "o", color=colours[name])
        errors = [setting.all[name].tau_error for setting in settings]
        spreads = [
            None if error is None else Spread(tau - error, tau + error)
            for (_, tau), error in zip(some, errors, strict=True)
        ]
        error_bars(axis, [cost for cost, _ in some], spreads, colours[name])
    axis.set(
        xlim=(0, max_cost),
        ylim=(0, max_tau),
        xlabel="time per step / time per plain step, without prefill",
        ylabel="tau",
    )
    axis.set_title("Tau against step cost", pad=14)


def _tau_by_length(axis: Any, lengths: Sequence[list[Setting]], colours: dict[str, str]) -> None:
    """Lines of tau, means over the benchmarks."""
    _by_length(axis, lengths, colours, lambda row: row.tau)
    axis.set(ylabel="tau", ylim=(0, None), title="Tau by length of the prompt")


def _time_by_length(axis: Any, lengths: Sequence[list[Setting]], colours: dict[str, str]) -> None:
    """Lines of ms per token, means over the benchmarks, and plain decoding's."""
    _by_length(axis, lengths, {PLAIN: "black", **colours}, lambda row: row.token_ms)
    axis.set(ylabel="ms per token (plain: black)", ylim=(0, None), title="Time by length")


def _by_length(
    axis: Any,
    lengths: Sequence[list[Setting]],
    colours: dict[str, str],
    figure: Callable[[Summary], float],
) -> None:
    tokens = [mean_tokens(some) for some in lengths]
    for name, colour in colours.items():
        means = [mean(figure, some, name) for some in lengths]
        axis.plot(tokens, means, "o-", color=colour, markersize=4)
    axis.set_xlabel("tokens of the mean prompt")
