"""The tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eval.compile.devices import Accelerator
from eval.compile.kernels import Kernel
from eval.compile.summary import Summary
from eval.latency.report import Grid

_TRAFFIC = (
    "GB: read and written, if no cache kept them; needed: weights, used rows of the caches, "
    "results; ratio: GB over needed; ms: GB at the memory's rate; temp: MB of temporary memory"
)
_LAUNCHES = (
    "layer: kernels in a layer of the target; sort, copy: MB of the largest sort, and of all "
    "copies; host: transfers and callbacks; aliases: arguments updated in place; s: to compile"
)


def traffic(summaries: Sequence[Summary], accelerator: Accelerator) -> Grid:
    """What each program moves through the device's memory."""
    rows = [
        [
            *_setting(each),
            f"{each.moved / 1e9:.2f}",
            "-" if each.least is None else f"{each.least.bytes / 1e9:.2f}",
            "-" if each.ratio is None else f"{each.ratio:.2f}",
            f"{1e3 * each.moved / accelerator.bandwidth:.2f}",
            f"{each.temporary / 1e6:,.0f}",
        ]
        for each in summaries
    ]
    columns = [*_SETTING, "GB", "needed", "ratio", "ms", "temp"]
    return Grid(f"Memory traffic, compiled for {accelerator.title}", columns, rows, _TRAFFIC)


def launches(summaries: Sequence[Summary], accelerator: Accelerator) -> Grid:
    """What each program runs."""
    rows = [
        [
            *_setting(each),
            f"{each.launches:,}",
            f"{each.of_a_layer:g}",
            f"{each.largest_sort / 1e6:.1f}",
            f"{each.copied / 1e6:.1f}",
            f"{each.by_kind.get('host', 0)}",
            f"{each.updated_in_place}",
            f"{each.seconds:.0f}",
        ]
        for each in summaries
    ]
    columns = [*_SETTING, "kernels", "layer", "sort", "copy", "host", "aliases", "s"]
    return Grid(f"Kernels, compiled for {accelerator.title}", columns, rows, _LAUNCHES)


_SETTING = ("program", "batch", "nodes", "context")


def _setting(summary: Summary) -> list[str]:
    case = summary.case
    name = f"{case.shape} {case.method} {summary.program}"
    return [name, f"{case.batch}", f"{case.nodes or '-'}", f"{case.context}"]


def details(summary: Summary, count: int) -> Grid:
    """The kernels that move the most besides weights and caches; a layer's stand for all."""
    groups: dict[tuple[str, str, str], list[Kernel]] = {}
    for kernel in summary.kernels:
        path = re.sub(r"\blayer_\d+\b", "layer", kernel.path)
        groups.setdefault((path, kernel.kind, kernel.source), []).append(kernel)
    largest = sorted(groups.items(), key=lambda x: -sum(k.intermediate for k in x[1]))
    rows = [
        [
            path[-30:] or "-",
            source,
            kind,
            f"{sum(k.times for k in same)}",
            f"{sum(k.intermediate for k in same) / 1e6:,.1f}",
            f"{sum(k.moved for k in same) / 1e6:,.1f}",
        ]
        for (path, kind, source), same in largest[:count]
    ]
    case = summary.case
    title = f"{case.shape} {case.method} {summary.program}, batch {case.batch}: largest kernels"
    columns = ["kernel", "source", "kind", "times", "between", "all"]
    return Grid(
        title,
        columns,
        rows,
        "between: MB that only other kernels use, neither weights nor caches; all: MB with these",
    )
