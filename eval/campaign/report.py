"""The campaign's report: a table of its parts, then what each of them found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dart_jax.programs.outputs import write_json, write_text
from eval.campaign.parts import Part
from eval.campaign.runner import Outcome


def write_report(
    directory: Path, facts: dict[str, Any], parts: Sequence[Part], outcomes: dict[str, Outcome]
) -> None:
    """Writes `summary.json` and `summary.md`.

    Args:
      directory: the campaign's.
      facts: date, revision and whatever else holds for all parts.
      parts: all of them.
      outcomes: of those that have run.
    """
    content = {**facts, "parts": [dataclasses.asdict(each) for each in outcomes.values()]}
    write_json(directory / "summary.json", content)
    write_text(directory / "summary.md", markdown(directory, facts, parts, outcomes))


def read_outcomes(directory: Path, facts: dict[str, Any]) -> dict[str, Outcome]:
    """The finished parts of a campaign of the same revision; none if there was no such campaign."""
    try:
        content = json.loads((directory / "summary.json").read_text())
        if content["revision"] != facts["revision"] or content["tiny"] != facts["tiny"]:
            return {}
        found = [Outcome.from_json(each) for each in content["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {each.part: each for each in found if each.state == "done"}


def markdown(
    directory: Path, facts: dict[str, Any], parts: Sequence[Part], outcomes: dict[str, Outcome]
) -> str:
    """The report as Markdown, with the parts' own tables."""
    device = _device(directory)
    environment = device.get("environment", {})
    lines = ["# Campaign", ""]
    lines += [f"{facts['date']}, revision {facts['revision'] or 'unknown'}.", ""]
    lines += [f"- {name}: {value}" for name, value in environment.items()]
    for name in ("devices", "memory", "execution"):
        if device.get(name) is not None:
            lines.append(f"- {name}: {device[name]}")
    lines += ["", "| part | | command | seconds | |", "| --- | --- | --- | ---: | --- |"]
    for part in parts:
        outcome = outcomes.get(part.name, Outcome(part.name, "not run"))
        seconds = f"{outcome.seconds:.0f}" if outcome.state != "not run" else ""
        ended = outcome.state + (f": {outcome.message}" if outcome.message else "")
        cells = (part.name, part.why, f"`{part.command}`", seconds, ended.replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    for part in parts:
        outcome = outcomes.get(part.name)
        if outcome is None or part.name == "device":
            continue
        lines += ["", f"## {part.name}", "", part.why[0].upper() + part.why[1:] + ".", ""]
        lines += [f"    {part.command}", ""]
        states = " -> ".join(state for state in outcome.gpu if state)
        lines += [f"GPU before and after: {states}", ""] if states else []
        lines.append(_found(directory / part.name))
    return "\n".join(lines).rstrip() + "\n"


def _device(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / "device" / "report.json").read_text())
    except (OSError, ValueError):
        return {}


def _found(directory: Path) -> str:
    """A part's tables, or the end of its output."""
    try:
        return (directory / "report.md").read_text().strip()
    except OSError:
        pass
    try:
        output = (directory / "output.txt").read_text(errors="replace").strip().split("\n")
    except OSError:
        return ""
    return "\n".join(["```", *output[-30:], "```"])
