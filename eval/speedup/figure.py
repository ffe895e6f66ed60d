"""Draws the figure of a measurement: speed-ups, and acceptance by position."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dart_jax.programs.outputs import write_bytes
from eval.methods.registry import METHODS, PLAIN
from eval.speedup.measurement import Setting
from eval.speedup.tables import kinds

# Distinguishable with colour blindness and in greyscale.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb")


def write(path: Path, settings: Sequence[Setting]) -> None:
    """Writes the figure in the format of the path's suffix. Needs matplotlib."""
    image = io.BytesIO()
    draw(settings).savefig(image, dpi=150, format=path.suffix[1:])
    write_bytes(path, image.getvalue())


def draw(settings: Sequence[Setting]) -> Any:
    """Draws the first context, temperature and batch size."""
    from matplotlib.figure import Figure

    first = kinds(settings)[settings[0].kind]
    names = [name for name in first[0].all if name != PLAIN]
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    speedups, acceptance = figure.subplots(1, 2)
    for axis in (speedups, acceptance):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axis.set_axisbelow(True)
    _speedups(speedups, first, colours)
    _acceptance(acceptance, first, colours)
    figure.legend(loc="outside upper center", ncols=min(len(names), 4))
    repeats = len(first[0].all[names[0]].speedups)
    bars = f"range of {repeats} repeats" if repeats > 1 else "1 repeat: none"
    text = f"T = {first[0].temperature:g}, batch {first[0].batch_size}. Error bars: {bars}."
    figure.supxlabel(text, fontsize=9, color="#444444", x=0.01, ha="left")
    return figure


def _speedups(axis: Any, settings: Sequence[Setting], colours: dict[str, str]) -> None:
    """Bars per benchmark, or per group of prompts if there is only one."""
    groups = settings[0].groups
    if len(settings) > 1:
        groups = {setting.workload.title: setting.all for setting in settings}
    width = 0.8 / len(colours)
    for n, (name, colour) in enumerate(colours.items()):
        places = [g + (n - (len(colours) - 1) / 2) * width for g in range(len(groups))]
        rows = [methods[name] for methods in groups.values()]
        heights = [row.speedup for row in rows]
        errors = None
        if len(rows[0].speedups) > 1:
            below = [row.speedup - min(row.speedups) for row in rows]
            errors = below, [max(row.speedups) - row.speedup for row in rows]
        label, style = METHODS[name].title, {"color": colour, "capsize": 2.5}
        axis.bar(places, heights, width, yerr=errors, label=label, **style)
    axis.axhline(1, color="black", linewidth=0.8)
    rotated = {"rotation": 30, "ha": "right"} if len(groups) > 5 else {}
    axis.set_xticks(range(len(groups)), list(groups), **rotated)
    axis.set(ylabel="speed-up over plain decoding", title="Speed-up")


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
    title = "Verifications that accept a position"
    axis.set(xlabel="drafted position", title=title, ylim=(0, 1))
