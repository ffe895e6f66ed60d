"""Tables of the documents, made of the reports in results/: `python docs/results_tables.py` writes
them between `<!-- results/cpu/NAME.json -->` and `<!-- -->`; a test compares them.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results_pages import markdown

from dart_jax.programs.tables import spread
from eval.methods.registry import METHODS
from eval.peers.engine import ENGINES

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/results.md")

_BLOCK = re.compile(r"(<!-- (results/\S+\.json) -->\n\n).*?(\n\n<!-- -->)", re.S)


def updated(text: str) -> str:
    """Returns a document with its tables as the reports give them now."""

    def table(block: re.Match[str]) -> str:
        report = json.loads((ROOT / block[2]).read_text())
        columns, rows = KINDS[Path(block[2]).stem](report)
        return block[1] + markdown(columns, rows) + block[3]

    return _BLOCK.sub(table, text)


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def _questions(report: Mapping[str, Any]) -> Table:
    """Returns a row for each group of one benchmark, plain decoding beside DART."""
    [setting] = report["settings"]
    rows = []
    for group, methods in setting["groups"].items():
        plain, dart = methods["plain"], methods["dart"]
        rates = spread(plain["rates"]), spread(dart["rates"])
        ratio = spread(dart["speedups"], ".2f", "x")
        rows.append((group, *rates, ratio, f"{dart['tau']:.2f}", _same(dart)))
    return ("questions", "plain, tok/s", "DART, tok/s", "speed-up", "tau", "same text"), rows


def _benchmarks(report: Mapping[str, Any]) -> Table:
    """Returns a row for each method: means over benchmarks, and the least and the most of them."""
    pooled = [setting["groups"]["all"] for setting in report["settings"]]
    rows = []
    for name in pooled[0]:
        every = [methods[name] for methods in pooled]
        whole, later = (
            [statistics.median(each[ratios]) for each in every]
            for ratios in ("speedups", "decoding_speedups")
        )
        figures = [
            *(f"{statistics.mean(whole):.2f}x", f"{min(whole):.2f} to {max(whole):.2f}"),
            *(f"{statistics.mean(later):.2f}x", f"{statistics.mean(x['tau'] for x in every):.2f}"),
        ]
        same = sum(each["identical"] for each in every), sum(each["prompts"] for each in every)
        rows.append((METHODS[name].title, *figures, "{}/{}".format(*same)))
    head = ("method", "over plain", "by benchmark", "without the prefill", "tau", "same text")
    return head, rows[1:]


def _engines(report: Mapping[str, Any]) -> Table:
    """Returns a row for each engine, with a column for each number of threads."""
    engines: dict[str, list[str]] = {}
    for each in report["measurements"]:
        row = engines.setdefault(each["engine"], [ENGINES[each["engine"]].title, each["weights"]])
        row.append(spread([1 / seconds for seconds in each["token_seconds"]]))
    threads = dict.fromkeys(each["threads"] for each in report["measurements"])
    head = (f"{count} thread{'s'[: count - 1]}, tok/s" for count in threads)
    return ("engine", "weights", *head), [*engines.values()]


def _server(report: Mapping[str, Any]) -> Table:
    """Returns a row for each number of clients, the drafting server beside the plain one."""
    rows = []
    for load in report["loads"]:
        rates, tokens = (
            [[each[field] for each in load["rounds"][name]] for name in ("plain", "drafted")]
            for field in ("tokens_per_second", "per_token")
        )
        times = (f"{1000 * statistics.median(each):.2f}" for each in tokens)
        cells = *map(spread, rates), spread(load["ratios"], ".2f", "x"), *times
        rows.append((str(load["clients"]), *cells))
    head = ("plain, tok/s", "drafted, tok/s", "ratio", "plain, ms/token", "drafted, ms/token")
    return ("clients", *head), rows


def _same(row: Mapping[str, Any]) -> str:
    return f"{row['identical']}/{row['prompts']}"


KINDS: dict[str, Callable[[Mapping[str, Any]], Table]] = {
    "questions": _questions,
    "benchmarks": _benchmarks,
    "llama-cpp": _engines,
    "server": _server,
}

if __name__ == "__main__":
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(updated(path.read_text()))
