"""The report of the experiments: a document with a section for each."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from dart_jax.programs.outputs import write_text
from train.experiments.plans import PLANS, Plan

_HEADER = """# Ablations

The effect of design choices, the paper's (arXiv 2601.19278) and others, in this implementation,
measured by `train.ablate`. tau is the acceptance length: tokens emitted per verification, bonus
token included. alpha_t is how often the drafter's most likely token at position t is the target's.
± gives the standard deviation over seeds (for times: over repeats). The paper's figures are for
Qwen3-4B, ours for the target that the section names: compare differences, not values.

Rule: a difference is the mean over seeds of the differences at the same seed, with the half width
of its 95 % confidence interval (Student's t). If the interval contains 0, it is within the spread.
Otherwise it agrees with the paper if it has the same sign as the paper's, and disagrees if not; its
size does not matter.
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
}
# Student's t, 97.5 %, by degrees of freedom from 1; the last is used for all above.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Figures = Mapping[str, Mapping[str, Sequence[float]]]


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of first minus second, which have a figure per seed in the same order, and
    half the width of its 95 % confidence interval: infinite with one seed."""
    each = [a - b for a, b in zip(first, second, strict=True)]
    if len(each) < 2:
        return each[0], math.inf
    error = statistics.stdev(each) / math.sqrt(len(each))
    return statistics.fmean(each), _T[min(len(each) - 1, len(_T)) - 1] * error


def verdict(mean: float, half: float, paper: float | None = None) -> str:
    """Returns the verdict on a difference by the rule of the document.

    Args:
      mean: our difference.
      half: from `difference`.
      paper: the paper's difference; None if not published, then the verdict is more or less.
    """
    if math.isinf(half):
        return "one seed has no spread, so there is no verdict"
    if abs(mean) <= half:
        return "within the spread"
    if paper is None:
        return "more" if mean > 0 else "less"
    return "agrees" if mean * paper > 0 else "disagrees"


def write(path: Path, plan: Plan, setup: Sequence[str], figures: Figures) -> None:
    """Writes the experiment's section into the document, replacing an earlier version of it.

    Args:
      path: the document, created if needed.
      plan: the experiment.
      setup: paragraphs that say what was run.
      figures: each variant's figures, one value per seed.
    """
    sections = {}
    if path.is_file():
        _, *parts = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)
        sections = {part.partition("\n")[0]: part.rstrip("\n") for part in parts}
    paragraphs = [plan.title, *setup, _table(plan, figures)]
    if plan.alphas:
        curves = {variant: _alphas(own) for variant, own in figures.items()}
        most = max(map(len, curves.values()))
        rows = [[v, *map(_cell, c), *["-"] * (most - len(c))] for v, c in curves.items()]
        names = [plan.axis, *(f"alpha_{t}" for t in range(1, most + 1))]
        paragraphs.append(_markdown(names, rows))
    paragraphs += [_verdicts(plan, figures), *plan.notes]
    sections[plan.title] = "\n\n".join(paragraphs)
    titles = [each.title for each in PLANS.values()]
    ordered = sorted(sections, key=lambda t: titles.index(t) if t in titles else len(titles))
    write_text(path, "\n".join([_HEADER, *(f"## {sections[title]}\n" for title in ordered)]))


def _verdicts(plan: Plan, figures: Figures) -> str:
    """Lists the differences to the base with their verdicts, and totals."""
    lines, judged = [], []
    for figure in plan.compared if plan.base in figures else ():
        paper = plan.paper.get(figure, {})
        for name in (name for name in figures if name != plan.base):
            mean, half = difference(figures[name][figure], figures[plan.base][figure])
            spread = f" ± {half:.3f}" if math.isfinite(half) else ""
            line = f"{round(mean, 3) + 0.0:+.3f}{spread}"
            published = None
            if {name, plan.base} <= paper.keys():
                published = round(paper[name] - paper[plan.base], 6)
                line += f"; paper {published:+.3f}"
            judgement = verdict(mean, half, published)
            judged += [judgement] if published is not None else []
            lines.append(
                f"- {_NAMES[figure]}, {plan.axis} {name} against {plan.base}: {line}: {judgement}"
            )
    if not plan.paper:
        return "\n".join([*lines, "- The paper's figures are not available."])
    kinds = ("agrees", "within the spread", "disagrees")
    counts = ", ".join(f"{judged.count(kind)} {kind}" for kind in kinds)
    return "\n".join([*lines, f"- Of {len(judged)} differences that the paper reports: {counts}."])


def _table(plan: Plan, figures: Figures) -> str:
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


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if mean >= 1000:
        return f"{mean:,.0f}"
    return f"{mean:.3f} ± {statistics.stdev(values):.3f}" if len(values) > 1 else f"{mean:.3f}"


def _alphas(own: Mapping[str, Sequence[float]]) -> list[Sequence[float]]:
    """Returns the values of alpha_t by position."""
    return [own[f"alpha_{t}"] for t in range(1, 1 + sum(name.startswith("alpha_") for name in own))]
