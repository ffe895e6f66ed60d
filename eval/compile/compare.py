"""Compares two reports of `eval.compile`: what changed in the compiled programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rich.table import Table

# Key in a report -> what the table calls it, and the unit to divide by.
_FIGURES = {
    "kernels": ("kernels", 1),
    "of_a_layer": ("kernels in a layer", 1),
    "moved": ("MB moved", 1e6),
    "ratio": ("moved / needed", 1),
    "temporary": ("MB temporary", 1e6),
    "peak": ("MB peak", 1e6),
    "seconds": ("s to compile", 1),
}
# What the machine was doing decides it as well, so it is neither better nor worse.
_NOISY = "seconds"
_SETTING = ("shape", "method", "program", "batch", "nodes", "context", "prompt", "dtype", "layers")


@dataclasses.dataclass(frozen=True)
class Change:
    """One figure of one program; less is better.

    Attributes:
      program: with its setting.
      figure: what is counted.
      before: in the first report.
      after: in the second report.
      verdict: whether and how it changed; empty for the time to compile, which varies.
    """

    program: str
    figure: str
    before: float
    after: float
    verdict: Literal["better", "worse", "same", ""]

    @property
    def percent(self) -> str:
        """The change relative to before."""
        return f"{100 * (self.after / self.before - 1):+.1f}%" if self.before else "-"


def is_report(report: Any) -> bool:
    """Whether JSON is a report of `eval.compile`."""
    programs = report.get("programs") if isinstance(report, dict) else None
    return isinstance(programs, list) and all(
        isinstance(each, dict) and {*_SETTING, *_FIGURES} <= set(each) for each in programs
    )


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Yields every figure of the programs that both reports have in the same setting."""
    old = {_setting(each): each for each in before["programs"]}
    for each in after["programs"]:
        if (was := old.get(_setting(each))) is None:
            continue
        for key, (figure, unit) in _FIGURES.items():
            if was[key] is None or each[key] is None:
                continue
            values = was[key] / unit, each[key] / unit
            yield Change(_name(each), figure, *values, _verdict(key, *values))


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Lists other differences of the reports: device, environment, revision, programs."""
    lines = []
    for part in ("device", "environment"):
        old, new = before.get(part, {}), after.get(part, {})
        lines += [
            f"{name}: {old.get(name)} -> {new.get(name)}"
            for name in dict.fromkeys((*old, *new))
            if old.get(name) != new.get(name) and name != "description"
        ]
    if before.get("revision") != after.get("revision"):
        lines.append(f"revision: {before.get('revision')} -> {after.get('revision')}")
    old, new = ({_setting(x): _name(x) for x in report["programs"]} for report in (before, after))
    lines += [f"only before: {name}" for key, name in old.items() if key not in new]
    return lines + [f"only after: {name}" for key, name in new.items() if key not in old]


def table(title: str, found: Sequence[Change]) -> Table:
    """Returns a row per figure."""
    result = Table(title=title, title_justify="left")
    for name in ("program", "figure"):
        result.add_column(name)
    for name in ("before", "after", "change"):
        result.add_column(name, justify="right", no_wrap=True)
    colours = {"better": "green", "worse": "red"}
    program = ""
    for change in found:
        result.add_row(
            "" if change.program == program else change.program,
            change.figure,
            _number(change.before),
            _number(change.after),
            change.percent,
            style=colours.get(change.verdict, "none"),
        )
        program = change.program
    return result


def _setting(program: Mapping[str, Any]) -> tuple[Any, ...]:
    drawn = [*program.get("sampling", {}).values(), program.get("penalties", False)]
    return (*(program[name] for name in _SETTING), program.get("weights", "stored"), *drawn)


def _name(program: Mapping[str, Any]) -> str:
    name = f"{program['shape']} {program['method']} {program['program']}"
    tree = f", tree {program['nodes']}" if program["nodes"] else ""
    more = ", int8" if program.get("weights") == "int8" else ""
    if temperature := program.get("sampling", {}).get("temperature"):
        more += f", temperature {temperature:g}"
    return f"{name}, batch {program['batch']}{tree}, context {program['context']}{more}"


def _verdict(key: str, before: float, after: float) -> Literal["better", "worse", "same", ""]:
    if key == _NOISY:
        return ""
    if before == after:
        return "same"
    return "better" if after < before else "worse"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.2f}"
