"""The pages of the results, made of the reports in results/.

`results/<device>/<date>-<what>.json` is a report that a program wrote with --json, perhaps with
another `title`, a `note` in Markdown, and a `figure`, a file of docs/. A report is `transcribed` if
its tables are from a document; it has no raw data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
INDEX = "results/all.md"

# Folder -> its title.
DEVICES = {
    "cpu": "Two cores of a CPU",
    "h200": "NVIDIA H200",
    "h100": "NVIDIA H100",
    "compiled": "Compiled without a device",
}


def reports() -> dict[str, dict[str, Any]]:
    """Returns every report by the path of its page, which is its own but for the suffix."""
    files = [path for device in DEVICES for path in sorted(RESULTS.glob(f"{device}/*.json"))]
    return {
        f"results/{path.relative_to(RESULTS).with_suffix('.md')}": json.loads(path.read_text())
        for path in files
    }


def pages() -> dict[str, str]:
    """Returns the Markdown of every page and of their list, by its path below docs/."""
    every = reports()
    return {INDEX: _index(every), **{path: page(report) for path, report in every.items()}}


def page(report: Mapping[str, Any]) -> str:
    """Returns a report's page: its note, how it was made, its tables and its figure."""
    parts = [f"# {report['title']}", report.get("note", "")]
    if figure := report.get("figure"):
        parts.append(f"![{report['title']}](../../{figure})")
    for table in report["tables"]:
        title = f"**{_escape(table['title'])}**" if table["title"] else ""
        parts += [title, markdown(table["columns"], table["rows"]), _escape(table["caption"])]
    parts += ["## How it was measured", f"```sh\n{report['command']}\n```"]
    facts = {"date": report["date"][:10], **report["environment"]}
    if revision := report.get("revision"):
        facts["revision"] = revision[:12]
    parts.append("\n".join(f"- {name}: {_escape(value)}" for name, value in facts.items()))
    if report.get("transcribed"):
        parts.append("The tables are copied; the raw data were not kept.")
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown(columns: Sequence[str], rows: Any) -> str:
    """Returns a table whose first column is text and whose others are numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    escaped = [" | ".join(map(_escape, line)) for line in lines]
    return "\n".join(f"| {line} |" for line in escaped)


def _index(every: Mapping[str, Mapping[str, Any]]) -> str:
    parts = ["# All results"]
    for device, title in DEVICES.items():
        parts += [f"## {title}", ""]
        for path, report in every.items():
            _, folder, name = path.split("/")
            if folder == device:
                parts.append(f"- [{report['title']}]({folder}/{name}), {report['date'][:10]}")
        parts.append("")
    return "\n".join(parts)


def _escape(text: str) -> str:
    """Keeps a table's text from being read as Markdown's or HTML's marks."""
    for mark in "\\*_|":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;").replace("\n", "<br>")
