"""Compare two reports of one program.

    dart-jax compare before.json after.json

Of `speedup`, a rate has changed if both reports have at least three repeats, and the gap
between the reports' repeats is larger than the spread within either. Tau and the share of identical
outputs are deterministic, so any difference counts, unless they are of other trees, or of trees
whose size changes with the time of a step. Of other programs, the first numbers of all cells that
both reports' tables have are shown side by side, and nothing is judged.
Exit status 1 if something got worse.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.tables import spread, table

_LEAST_REPEATS = 3  # fewer do not show the spread
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class CompareConfig:
    """Reports to compare."""

    before: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE")]
    """A report that a program wrote with --json."""
    after: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER")]
    """Another one."""


# Name of a figure, its values in both reports, the ratio of these, and better, worse, same, or why
# nothing can be said.
Change = tuple[str, str, str, str, str]


def read(path: Path) -> dict[str, Any]:
    """Reads a report; raises UserError if the file is not one."""
    try:
        report = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(report, dict) or not {"tables", "environment", "command"} <= set(report):
        raise UserError(f"{path} is not a report of a program; make one with --json")
    return report


def _of_methods(report: Mapping[str, Any]) -> bool:
    """Says if a report has the methods' figures in groups, as that of `eval.speedup` has."""
    settings = report.get("settings") or [None]
    return all(
        isinstance(each, dict) and {"bench", "trees", "groups"} <= set(each) for each in settings
    )


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Yields every figure that both reports have, over all prompts of a setting."""
    if not (_of_methods(before) and _of_methods(after)):
        yield from _side_by_side(_cells(before), _cells(after))
        return
    old_methods = _methods(before)
    for name, new in _methods(after).items():
        if (old := old_methods.get(name)) is None:
            continue
        yield _rate(f"{name}: tok/s", old["rates"], new["rates"], ",.0f")
        if name.endswith(", plain"):
            continue
        yield _rate(f"{name}: speed-up", old["speedups"], new["speedups"], ".2f")
        same_tree = old["tree"] == new["tree"] and not old["tree"].get("sizes")
        same, now_same = (each["identical"] / each["prompts"] for each in (old, new))
        yield _exact(f"{name}: tau", old["tau"], new["tau"], ".3f", same_tree)
        yield _exact(f"{name}: identical", same, now_same, ".0%", same_tree)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Lists what else differs: environment, options, revision."""
    old, new = (
        {**each["environment"], **each.get("config", {}), "revision": each.get("revision")}
        for each in (before, after)
    )
    names = [name for name in {**old, **new} if name not in ("json", "markdown", "plot")]
    pairs = [(name, old.get(name), new.get(name)) for name in names]
    return [f"{name}: {one} -> {other}" for name, one, other in pairs if one != other]


def _methods(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the figures and the tree of each setting and method."""
    methods = {}
    for each in report["settings"]:
        context = each.get("context")  # older reports have none
        where = each["bench"] if context is None else f"{each['bench']}, context {context}"
        where += f", T {each['temperature']:g}, batch {each['batch_size']}"
        for name, figures in each["groups"]["all"].items():
            methods[f"{where}, {name}"] = {**figures, "tree": each["trees"].get(name)}
    return methods


def _cells(report: Mapping[str, Any]) -> dict[str, float]:
    """Returns the first number of every cell by its table, row and column; the n-th of equal ones
    is `n. `."""
    cells: dict[str, float] = {}
    seen = Counter[str]()
    for each in report["tables"]:
        for name, *row in each["rows"]:
            for column, cell in zip(each["columns"][1:], row, strict=True):
                if number := re.search(r"-?\d[\d,]*(\.\d+)?", cell):
                    figure = ", ".join(filter(None, (each["title"], name.strip(), column)))
                    seen[figure] += 1
                    first = f"{seen[figure]}. " if seen[figure] > 1 else ""
                    cells[first + figure] = float(number[0].replace(",", ""))
    return cells


def _side_by_side(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[Change]:
    for figure, new in after.items():
        if (old := before.get(figure)) is not None:
            ratio = f"{new / old:.3f}" if old else "-"
            yield figure, f"{old:,g}", f"{new:,g}", ratio, "same" if new == old else "not judged"


def _rate(figure: str, old: list[float], new: list[float], form: str) -> Change:
    """Compares a figure that was measured several times."""
    verdict = "same"
    widest = max(max(values) - min(values) for values in (old, new))
    if min(len(old), len(new)) < _LEAST_REPEATS:
        verdict = "too few repeats"
    elif min(new) - max(old) > widest:
        verdict = "better"
    elif min(old) - max(new) > widest:
        verdict = "worse"
    ratio = statistics.median(new) / statistics.median(old)
    return figure, spread(old, form), spread(new, form), f"{ratio:.3f}", verdict


def _exact(figure: str, old: float, new: float, form: str, same_tree: bool) -> Change:
    """Compares a figure that is deterministic for a tree."""
    verdict = "same"
    if abs(new - old) > _ROUNDING:
        verdict = "other trees" if not same_tree else "better" if new > old else "worse"
    return figure, f"{old:{form}}", f"{new:{form}}", f"{new / old:.3f}" if old else "-", verdict


def run(config: CompareConfig, console: Console) -> bool:
    """Prints the comparison; returns whether nothing got worse. Raises UserError if a file is not a
    report, or the two have no setting in common."""
    before, after = read(config.before), read(config.after)
    figures = list(changes(before, after))
    if not figures:
        both = f"{config.before} and {config.after}"
        raise UserError(f"{both} have no benchmark, method or row of a table in common")
    for line in differences(before, after):
        console.print(line, soft_wrap=True, markup=False)
    counts = Counter(verdict for *_, verdict in figures)
    title = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    console.print(table(title, ("figure", "before", "after", "ratio", ""), figures))
    return not counts["worse"]


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: something got worse; 2: bad input, reported in one line."""
    with program():
        if not run(parse(CompareConfig, args, __doc__), Console()):
            sys.exit(1)


if __name__ == "__main__":
    main()
