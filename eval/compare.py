"""Compare two reports of `eval.speedup`.

    python -m eval.compare before.json after.json

Shows what changed beyond noise. A rate has changed if both reports have at least three repeats, and
the gap between the reports' repeats is larger than the spread within either report. Tau and the
number of identical outputs are deterministic, so any difference counts, unless different trees were
chosen, which they depend on.

Exit status 1 if something got worse.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.spread import spread as spread_of

Verdict = Literal["better", "worse", "same", "too few repeats", "different trees"]

# Fewer repeats do not show the spread.
_MIN_REPEATS = 3

# Smaller differences come from rounding.
_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class CompareConfig:
    """The reports to compare."""

    before: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE")]
    """JSON of eval.speedup."""
    after: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER")]
    """Another one."""
    groups: bool = False
    """Also compare each group of prompts, not only all of them together."""
    all: bool = False
    """Also list the figures that did not change beyond noise."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One metric of one method in one setting.

    Attributes:
      setting: benchmark, temperature and batch size, and the group of prompts.
      method: name of the method.
      metric: `tok/s`, `speed-up`, `tau` or `identical`.
      before: formatted value in the first report.
      after: formatted value in the second report.
      ratio: ratio of the medians, after over before.
      verdict: whether and how it changed, or why this cannot be decided.
    """

    setting: str
    method: str
    metric: str
    before: str
    after: str
    ratio: float
    verdict: Verdict


def read(path: Path) -> dict[str, Any]:
    """Reads a report; raises UserError if the file is not one."""
    try:
        report = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    settings = report.get("settings") if isinstance(report, dict) else None
    # Other programs' reports have settings too, but no methods compared in groups.
    if not isinstance(settings, list) or not all(
        isinstance(setting, dict) and {"bench", "trees", "groups"} <= set(setting)
        for setting in settings
    ):
        raise UserError(f"{path} is not a report of eval.speedup; make one with --json")
    return report


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], *, groups: bool = False
) -> Iterator[Change]:
    """Yields every metric that both reports have.

    Args:
      before: a report.
      after: another report.
      groups: whether to include each group of prompts.
    """
    rows = _rows(before)
    for key, new in _rows(after).items():
        (setting, group, method), old = key, rows.get(key)
        if old is None or (group != "all" and not groups):
            continue
        where = setting if group == "all" else f"{setting}, {group}"
        yield _rate_change(where, method, "tok/s", old["rates"], new["rates"], ",.0f")
        if method == "plain":
            continue
        yield _rate_change(where, method, "speed-up", old["speedups"], new["speedups"], ".2f")
        was, now = (row["identical"] / row["prompts"] for row in (old, new))
        for change in (
            _exact_change(where, method, "tau", old["tau"], new["tau"], ".3f"),
            _exact_change(where, method, "identical", was, now, ".0%"),
        ):
            comparable = change.verdict == "same" or old["tree"] == new["tree"]
            yield change if comparable else dataclasses.replace(change, verdict="different trees")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Lists other differences of the reports: environment, revision, options, trees."""
    lines = []
    for part in ("environment", "config"):
        old, new = before.get(part, {}), after.get(part, {})
        names = dict.fromkeys((*old, *new))
        lines += [
            f"{name}: {old.get(name)} -> {new.get(name)}"
            for name in names
            if old.get(name) != new.get(name) and name not in ("json", "markdown", "plot")
        ]
    if before.get("revision") != after.get("revision"):
        lines.append(f"revision: {before.get('revision')} -> {after.get('revision')}")
    old, new = (
        {(_setting(s), name): tree for s in report["settings"] for name, tree in s["trees"].items()}
        for report in (before, after)
    )
    lines += [
        f"tree of {name}, {setting}: {old[setting, name]} -> {tree}"
        for (setting, name), tree in new.items()
        if old.get((setting, name), tree) != tree
    ]
    return lines


def _rows(report: Mapping[str, Any]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    return {
        (_setting(setting), group, method): {**row, "tree": setting["trees"].get(method)}
        for setting in report["settings"]
        for group, methods in setting["groups"].items()
        for method, row in methods.items()
    }


def _setting(setting: Mapping[str, Any]) -> str:
    return f"{setting['bench']}, T = {setting['temperature']:g}, batch {setting['batch_size']}"


def _rate_change(
    setting: str, method: str, metric: str, old: list[float], new: list[float], form: str
) -> Change:
    """Compares a metric that was measured several times."""
    verdict: Verdict = "same"
    spread = max(max(values) - min(values) for values in (old, new))
    if min(len(old), len(new)) < _MIN_REPEATS:
        verdict = "too few repeats"
    elif min(new) - max(old) > spread:
        verdict = "better"
    elif min(old) - max(new) > spread:
        verdict = "worse"
    ratio = statistics.median(new) / statistics.median(old)
    values = spread_of(old, form), spread_of(new, form)
    return Change(setting, method, metric, *values, ratio, verdict)


def _exact_change(
    setting: str, method: str, metric: str, old: float, new: float, form: str
) -> Change:
    """Compares a metric that is deterministic."""
    verdict: Verdict = "same"
    if abs(new - old) > _TOLERANCE:
        verdict = "better" if new > old else "worse"
    ratio = new / old if old else float("nan")
    return Change(setting, method, metric, f"{old:{form}}", f"{new:{form}}", ratio, verdict)


def table(title: str, found: Sequence[Change]) -> Table:
    """Returns a row per metric, with its verdict if it changed."""
    result = Table(title=title, title_justify="left")
    for name in ("setting", "method", "metric"):
        result.add_column(name)
    for name in ("before", "after", "ratio", ""):
        result.add_column(name, justify="right")
    colours = {"better": "green", "worse": "red"}
    for change in found:
        result.add_row(
            change.setting,
            change.method,
            change.metric,
            change.before,
            change.after,
            f"{change.ratio:.3f}",
            "" if change.verdict == "same" else change.verdict,
            style=colours.get(change.verdict, "none"),
        )
    return result


def run(config: CompareConfig, console: Console) -> bool:
    """Prints the comparison; returns whether nothing got worse.

    Raises:
      UserError: a file is not a report, or the two have no setting in common.
    """
    before, after = read(config.before), read(config.after)
    found = list(changes(before, after, groups=config.groups))
    if not found:
        raise UserError(
            f"{config.before} and {config.after} have no benchmark, temperature, batch size and "
            "method in common"
        )
    for line in differences(before, after):
        console.print(line, soft_wrap=True)
    changed = [change for change in found if change.verdict in ("better", "worse")]
    if config.all:
        console.print(table("All figures", found))
    elif changed:
        console.print(table("Changes beyond noise", changed))
    counts = Counter(change.verdict for change in found)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    beyond = f"{len(changed)} changed" if changed else "nothing changed"
    console.print(f"{beyond} beyond noise ({len(found)} figures: {verdicts})", highlight=False)
    return all(change.verdict != "worse" for change in found)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: something got worse; 2: bad input, reported in one line."""
    with program():
        if not run(parse(CompareConfig, args, __doc__), Console()):
            sys.exit(1)


if __name__ == "__main__":
    main()
