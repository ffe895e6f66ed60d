"""Draws latency against throughput, and the servers beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dart_jax.programs.figures import (
    COLOURS,
    Spread,
    error_bars,
    new_panels,
    note,
    save_figure,
    told,
)
from eval.serving.report import Report
from eval.serving.summary import Load, Round, Summary


def write(path: Path, report: Report) -> None:
    """Writes the figure to a file. Needs matplotlib."""
    save_figure(draw(report), path)


def draw(report: Report) -> Any:
    """Draws TPOT against throughput, throughput and time to the first token by load and, with
    several servers, the first one's ratio to the others."""
    names = list(dict.fromkeys(each.way for each in report.summaries))
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    several = len(names) > 1
    figure, axes = new_panels(4 if several else 3, columns=2)
    _curves(axes[0], report, colours)
    _by_load(axes[1], report, colours, lambda each: each.token_rate)
    axes[1].set(ylabel="new tokens / s", title="Throughput")
    _first_tokens(axes[2], report, colours)
    if several:
        _ratios(axes[3], report, colours)
    handles, labels = axes[1].get_legend_handles_labels()
    if several:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(names))
    rounds = report.config.rounds
    note(figure, f"{report.workload}. Error bars: {told('range', rounds, 'round')}.")
    return figure


def _of(report: Report, name: str) -> list[Summary]:
    return [each for each in report.summaries if each.way == name]


def _place(load: Load) -> float:
    return load.rate if load.rate is not None else load.clients or 0


def _curves(axes: Any, report: Report, colours: dict[str, str]) -> None:
    """A point for each load."""
    for name, colour in colours.items():
        some = [each for each in _of(report, name) if each.times["tpot"] is not None]
        if not some:
            continue
        xs = [statistics.median(one.token_rate for one in each.rounds) for each in some]
        taken = [[1e3 * (one.tpot or 0) for one in each.rounds] for each in some]
        ys = [statistics.median(values) for values in taken]
        axes.plot(xs, ys, "o-", color=colour, markersize=4)
        error_bars(axes, xs, [Spread.range(values) for values in taken], colour)
        for each, x, y in zip(some, xs, ys, strict=True):
            axes.annotate(str(each.load), (x, y), xytext=(4, 4), textcoords="offset points")
    kind = "arrivals" if report.config.rate else "clients"
    axes.set(
        xlabel=f"new tokens / s (numbers: {kind})",
        ylabel="time per output token, ms",
        title="Latency against throughput",
    )
    axes.set_ylim(bottom=0)
    axes.margins(x=0.12)


def _by_load(
    axes: Any, report: Report, colours: dict[str, str], value: Callable[[Round], float]
) -> None:
    """A figure of every round, by load."""
    for name, colour in colours.items():
        some = _of(report, name)
        places = [_place(each.load) for each in some]
        taken = [[value(one) for one in each.rounds] for each in some]
        ys = [statistics.median(values) for values in taken]
        axes.plot(places, ys, "o-", color=colour, markersize=4, label=name)
        error_bars(axes, places, [Spread.range(values) for values in taken], colour)
    axes.set_ylim(bottom=0)
    _loads(axes, report)


def _first_tokens(axes: Any, report: Report, colours: dict[str, str]) -> None:
    """Median and 99th percentile of the time to the first token."""
    for name, colour in colours.items():
        some = [(each, taken) for each in _of(report, name) if (taken := each.times["ttft"])]
        places = [_place(each.load) for each, _ in some]
        for rank, style in ((0, "o-"), (2, "o:")):
            ys = [1e3 * taken[rank] for _, taken in some]
            axes.plot(places, ys, style, color=colour, markersize=4)
    _loads(axes, report)
    axes.set(yscale="log", ylabel="ms", title="Time to first token: p50, and p99 dotted")


def _ratios(axes: Any, report: Report, colours: dict[str, str]) -> None:
    """The first server's tokens a second over the others'."""
    first, *others = colours
    for name in others:
        some = _of(report, name)
        places = [_place(each.load) for each in some]
        taken: Sequence[list[float]] = [
            report.first(each.load).token_ratios(each) or [0.0] for each in some
        ]
        ys = [statistics.median(values) for values in taken]
        axes.plot(places, ys, "o-", color=colours[name], markersize=4)
        error_bars(axes, places, [Spread.range(values) for values in taken], colours[name])
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylim(bottom=0)
    _loads(axes, report)
    axes.set(
        ylabel="ratio of new tokens / s", title=f"{first[0].upper()}{first[1:]} over the others"
    )


def _loads(axes: Any, report: Report) -> None:
    """The horizontal axis of loads."""
    loads = list(dict.fromkeys(each.load for each in report.summaries))
    axes.set(xscale="log", xlabel="arrivals / s" if report.config.rate else "clients")
    axes.set_xticks([_place(load) for load in loads], [str(load) for load in loads])
    axes.minorticks_off()
