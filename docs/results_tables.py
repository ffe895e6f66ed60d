"""Tables of the documents, made of the reports in results/.

`PYTHONPATH=. python docs/results_tables.py` writes them between `<!-- results/cpu/NAME.json -->`
and `<!-- -->`, those of some reports in several ways (`<!-- results/cpu/NAME.json: WAY -->`), and
some of all reports whose names begin alike (`<!-- results/cpu/NAME*.json -->`); a test compares
them.
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
from eval.benchmarks.registry import find
from eval.methods.registry import METHODS
from eval.peers.engine import ENGINES

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/results.md")

_BLOCK = re.compile(r"(<!-- (results/\w+/(.+?)\.json(: .+?)?) -->\n\n).*?(\n\n<!-- -->)", re.S)


def updated(text: str) -> str:
    """Returns a document with its tables as the reports give them now."""

    def table(block: re.Match[str]) -> str:
        begin, path, name, way, end = block.groups("")
        files = sorted(ROOT.glob(path.removesuffix(way)))
        columns, rows = WAYS[name + way](*(json.loads(file.read_text()) for file in files))
        return begin + markdown(columns, rows) + end

    return _BLOCK.sub(table, text)


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def _pooled(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the methods' figures over all prompts of a benchmark, by its title."""
    return {find(each["bench"]).title: each["groups"]["all"] for each in report["settings"]}


def _by_benchmark(report: Mapping[str, Any]) -> Table:
    """Returns a row for each benchmark, plain decoding beside DART, and their means."""
    rows, means = [], []
    for title, methods in _pooled(report).items():
        plain, dart = methods["plain"], methods["dart"]
        rates = spread(plain["rates"]), spread(dart["rates"])
        rows.append((title, *rates, spread(dart["speedups"], ".2f", "x"), f"{dart['tau']:.2f}"))
        means.append((statistics.median(dart["speedups"]), dart["tau"]))
    speedup, tau = map(statistics.mean, zip(*means, strict=True))
    rows.append(("mean", "", "", f"{speedup:.2f}x", f"{tau:.2f}"))
    return ("benchmark", "plain, tok/s", "DART, tok/s", "speed-up", "tau"), rows


def _by_method(report: Mapping[str, Any]) -> Table:
    """Returns a row for each method: means over benchmarks, and the least and the most of them."""
    pooled = [*_pooled(report).values()]
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
        rows.append((METHODS[name].title, *figures, _same(every)))
    head = ("method", "over plain", "by benchmark", "without the prefill", "tau", "same text")
    return head, rows[1:]


def _copying(*reports: Mapping[str, Any]) -> Table:
    """Returns a row for each target: what drafts of its text give by workload, beside prompt
    lookup, and their means."""
    rows, workloads = [], [*_pooled(reports[0])]
    for report in reports:
        both = [
            [methods[name]["speedup"] for methods in _pooled(report).values()]
            for name in ("text", "pld")
        ]
        pairs = [*zip(*both, strict=True), map(statistics.mean, both)]
        cells = (" / ".join(f"{ratio:.2f}" for ratio in pair) for pair in pairs)
        rows.append((report["title"].partition(":")[0], *cells))
    return ("target", *workloads, "mean"), rows


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


def _same(rows: Sequence[Mapping[str, Any]]) -> str:
    return "/".join(str(sum(row[count] for row in rows)) for count in ("identical", "prompts"))


WAYS: dict[str, Callable[..., Table]] = {
    "benchmarks: by benchmark": _by_benchmark,
    "benchmarks: by method": _by_method,
    "copying*": _copying,
    "llama-cpp": _engines,
    "server": _server,
}

if __name__ == "__main__":
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(updated(path.read_text()))
