"""Comparison of variants of a drafter with a base and with the paper: tables and differences."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

# Student's t, 97.5 %, by degrees of freedom from 1; the last is used for all above.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

# Of each variant, its figures by name, with one value per seed.
Figures = Mapping[str, Mapping[str, Sequence[float]]]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A comparison of values of one option of `train.drafter`.

    Attributes:
      title: title of its section.
      option: the compared option.
      axis: what the variants' names stand for.
      variants: the values to compare, by name.
      base: name of the variant that the others are compared with.
      figures: the figures whose differences are told.
      paper: the paper's figures, by figure and variant.
      note: a note for the reader.
    """

    title: str
    option: str
    axis: str
    variants: Mapping[str, float | bool]
    base: str
    figures: tuple[str, ...]
    paper: Mapping[str, Mapping[str, float]]
    note: str = ""


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of first minus second, which have a figure per seed in the same order, and
    half the width of its 95 % confidence interval: infinite with one seed."""
    each = [a - b for a, b in zip(first, second, strict=True)]
    if len(each) < 2:
        return each[0], math.inf
    error = statistics.stdev(each) / math.sqrt(len(each))
    return statistics.fmean(each), _T[min(len(each) - 1, len(_T)) - 1] * error


def report(experiment: Experiment, setup: Sequence[str], figures: Figures) -> str:
    """Returns the experiment's section of `docs/ablations.md`.

    Args:
      experiment: what was compared.
      setup: paragraphs that say what was run.
      figures: each variant's figures.
    """
    paragraphs = [f"## {experiment.title}", *setup, _table(experiment, figures)]
    paragraphs += ["\n".join(_differences(experiment, figures)), experiment.note]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _differences(experiment: Experiment, figures: Figures) -> list[str]:
    """Returns a line for each difference to the base, with the paper's."""
    lines, base = [], experiment.base
    for figure in experiment.figures:
        paper = experiment.paper.get(figure, {})
        for name in (name for name in figures if name != base):
            mean, half = difference(figures[name][figure], figures[base][figure])
            line = f"- {figure}, {experiment.axis} {name} against {base}: {mean:+.3f}"
            line += f" ± {half:.3f}" if math.isfinite(half) else ", of one seed"
            if {name, base} <= paper.keys():
                line += f"; paper {paper[name] - paper[base]:+.3f}"
            lines.append(line)
    return lines


def _table(experiment: Experiment, figures: Figures) -> str:
    """Returns a table with one row per variant, the paper's figures next to ours."""
    names = [experiment.axis]
    shown = dict.fromkeys([*experiment.figures, *figures[experiment.base]])
    for figure in shown:
        names += [figure, *["paper"] * (figure in experiment.paper)]
    lines = [names, ["---"] * len(names)]
    for variant, own in figures.items():
        cells = [variant]
        for figure in shown:
            cells.append(_cell(own[figure]))
            if figure in experiment.paper:
                paper = experiment.paper[figure].get(variant)
                cells.append("-" if paper is None else f"{paper:g}")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean
