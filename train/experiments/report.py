"""The report of the experiments: a document with a section and a figure for each."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_jax.programs.figures import (
    COLOURS,
    SMALL,
    Spread,
    error_bars,
    new_panels,
    note,
    told,
)
from dart_jax.programs.outputs import write_text
from train.experiments.variants import TITLES, Experiment
from train.experiments.verdict import RULE, difference, verdict

_HEADER = f"""# Ablations

The effect of design choices, the paper's (arXiv 2601.19278) and others, in this implementation,
measured by `train.ablate`. tau is the acceptance length: tokens emitted per verification, bonus
token included. alpha_t is how often the drafter's most likely token at position t is the target's.
± gives the standard deviation over seeds (for times: over repeats). The paper's figures are for
Qwen3-4B, ours for the target that the section names: compare differences, not values.

{RULE}
"""
_NAMES = {
    "held_out_loss": "held-out loss",
    "tau": "tau",
    "tau_without_ngram": "tau without n-gram",
    "alpha_1": "alpha_1",
    "parameters": "drafter's parameters",
    "coverage": "coverage",
    "step_time": "time of a decode step",
    "tau_per_time": "tau per that time",
    "tau_inside": "tau inside",
    "tau_outside": "tau outside",
}

Figures = Mapping[str, Mapping[str, Sequence[float]]]


def compare(plan: Experiment, figures: Figures) -> list[dict[str, Any]]:
    """Compares every variant with the base: the difference, the paper's, and the verdict."""
    compared = []
    if plan.base not in figures:
        return compared
    for figure in plan.compared:
        paper = plan.paper.get(figure, {})
        for name, own in figures.items():
            if name == plan.base:
                continue
            measured = difference(own[figure], figures[plan.base][figure])
            in_paper = {name, plan.base} <= paper.keys()
            published = round(paper[name] - paper[plan.base], 6) if in_paper else None
            compared.append(
                {
                    "figure": figure,
                    "variant": name,
                    "base": plan.base,
                    "difference": measured.mean,
                    "half": measured.half if math.isfinite(measured.half) else None,
                    "told": str(measured),
                    "paper": published,
                    "verdict": verdict(measured, published),
                }
            )
    return compared


def write(path: Path, plan: Experiment, content: Mapping[str, Any], drawing: str) -> None:
    """Writes the experiment's section into the document, replacing an earlier version of it.

    Args:
      path: the document, created if needed.
      plan: the experiment.
      content: its raw figures, as `train.ablate` writes them.
      drawing: name of the figure's file, next to the document.
    """
    sections = {}
    if path.is_file():
        _, *parts = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)
        sections = {part.partition("\n")[0]: part.rstrip("\n") for part in parts}
    sections[plan.title] = f"{plan.title}\n\n{_section(plan, content, drawing)}"
    titles = [*TITLES.values()]
    ordered = sorted(sections, key=lambda t: titles.index(t) if t in titles else len(titles))
    text = "\n".join([_HEADER, *(f"## {sections[title]}\n" for title in ordered)])
    write_text(path, text)


def draw(plan: Experiment, figures: Figures) -> Any:
    """Draws one panel per figure, with standard deviations and the paper's points."""
    panels = [*plan.figures, *["alphas"] * plan.alphas]
    figure, grid = new_panels(len(panels), columns=3)
    for axes, name in zip(grid, panels, strict=True):
        if name == "alphas":
            _draw_alphas(axes, plan, figures)
        else:
            _draw_figure(axes, plan, figures, name)
    note(figure, _note(plan, figures))
    return figure


def _note(plan: Experiment, figures: Figures) -> str:
    """Says what the error bars are."""
    own = next(iter(figures.values()))
    text = f"Error bars: {told('standard deviation', len(own[plan.figures[0]]), 'seed')}"
    if plan.timed:
        text += f"; of the time, {told('standard deviation', len(own['step_time']))}"
    return f"{text}."


def _draw_alphas(axes: Any, plan: Experiment, figures: Figures) -> None:
    """Draws the agreement at every position, with a curve per variant."""
    for number, (variant, own) in enumerate(figures.items()):
        curve, colour = _alphas(own), COLOURS[number % len(COLOURS)]
        places = range(1, len(curve) + 1)
        means = [statistics.fmean(values) for values in curve]
        axes.plot(places, means, "o-", markersize=4, color=colour, label=f"{plan.axis} {variant}")
        error_bars(axes, places, [Spread.deviation(values) for values in curve], colour)
    axes.set(title="agreement by position", xlabel="position t")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=SMALL)


def _draw_figure(axes: Any, plan: Experiment, figures: Figures, name: str) -> None:
    """Draws a figure of every variant, and the paper's points."""
    # Variants that are not numbers are not joined by lines.
    ordered = all(variant.replace(".", "", 1).isdigit() for variant in figures)
    values = [own[name] for own in figures.values()]
    places = range(len(figures))
    style = {"color": COLOURS[0], "label": "here", "markersize": 5}
    axes.plot(places, [*map(statistics.fmean, values)], "o-" if ordered else "o", **style)
    error_bars(axes, places, [*map(Spread.deviation, values)], COLOURS[0])
    paper = plan.paper.get(name, {})
    points = [(place, paper[v]) for place, v in enumerate(figures) if v in paper]
    if points:
        style = {"color": COLOURS[1], "label": "paper, Qwen3-4B", "markersize": 5}
        axes.plot(*zip(*points, strict=True), "s:" if ordered else "s", **style)
        axes.legend(fontsize=SMALL)
    if name == "parameters":
        axes.yaxis.set_major_formatter(lambda count, _: f"{count / 1e6:.1f} M")
    axes.set_xticks(places, [*figures])
    axes.set(title=_NAMES[name], xlabel=plan.axis)
    axes.margins(x=0.15)


def _section(plan: Experiment, content: Mapping[str, Any], drawing: str) -> str:
    environment, recipe, tree = content["environment"], content["recipe"], content["tree"]
    versions = ", ".join(f"{k} {v}" for k, v in environment.items() if k not in ("device",))
    trainer = recipe["trainer"]
    seeds = content["seeds"]
    drafters = (
        f"{trainer['steps']} steps of {trainer['batch_size']} rows, {seeds} seed{'s' * (seeds > 1)}"
    )
    if given := content["options"].get("drafter"):
        drafters = f"drafter `{given}`"
    setup = (
        f"{content['date']}, {environment['device']}; {versions}. Target `{recipe['target']}`, "
        f"{drafters}; "
        f"{content['prompts']} prompts, {content['options']['max_new_tokens']} new tokens each, "
        f"trees of {tree['nodes']} nodes (level decay {tree['level_decay']:g})."
    )
    figures: Figures = content["figures"]
    parts = [setup, f"    {content['command']}", _table(plan, figures)]
    if plan.alphas:
        parts.append(_alpha_table(plan, figures))
    parts.append(f"![{plan.title}]({drawing})")
    parts.append(_verdicts(plan, content["compared"]))
    return "\n\n".join([*parts, *plan.notes])


def _verdicts(plan: Experiment, compared: Sequence[Mapping[str, Any]]) -> str:
    """Lists the verdicts, and their totals."""
    lines = []
    for each in compared:
        paper = "" if each["paper"] is None else f"; paper {each['paper']:+.3f}"
        lines.append(
            f"- {_NAMES[each['figure']]}, {plan.axis} {each['variant']} against {each['base']}: "
            f"{each['told']}{paper}: {each['verdict']}"
        )
    if not plan.paper:
        lines.append("- The paper's figures are not available.")
        return "\n".join(lines)
    judged = [each["verdict"] for each in compared if each["paper"] is not None]
    kinds = ("agrees", "within the spread", "disagrees")
    counted = ", ".join(f"{judged.count(kind)} {kind}" for kind in kinds)
    lines.append(f"- Of {len(judged)} differences that the paper reports: {counted}.")
    return "\n".join(lines)


def _table(plan: Experiment, figures: Figures) -> str:
    """Returns a table with one row per variant, the paper's figures next to ours."""
    names = [plan.axis]
    for figure in plan.figures:
        names += [_NAMES[figure], *["paper"] * (figure in plan.paper)]
    rows = []
    for variant, own in figures.items():
        cells = [variant]
        for figure in plan.figures:
            cells.append(_cell(own[figure]))
            if figure in plan.paper:
                paper = plan.paper[figure].get(variant)
                cells.append("-" if paper is None else f"{paper:g}")
        rows.append(cells)
    return _markdown(names, rows)


def _alpha_table(plan: Experiment, figures: Figures) -> str:
    curves = {variant: _alphas(own) for variant, own in figures.items()}
    most = max(map(len, curves.values()))
    names = [plan.axis, *(f"alpha_{t}" for t in range(1, most + 1))]
    rows = [
        [variant, *map(_cell, curve), *["-"] * (most - len(curve))]
        for variant, curve in curves.items()
    ]
    return _markdown(names, rows)


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if mean >= 1000:
        return f"{mean:,.0f}"
    return f"{mean:.3f} ± {_deviation(values):.3f}" if len(values) > 1 else f"{mean:.3f}"


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _alphas(own: Mapping[str, Sequence[float]]) -> list[Sequence[float]]:
    """Returns the values of alpha_t by position."""
    return [own[f"alpha_{t}"] for t in range(1, 1 + sum(name.startswith("alpha_") for name in own))]
