"""The tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from eval.compile.cases import XLA_NAMES, Case
from eval.compile.collectives import Total
from eval.compile.devices import Accelerator
from eval.compile.kernels import Kernel
from eval.compile.prediction import Setting
from eval.compile.summary import Summary
from eval.latency.report import Grid

_TRAFFIC = (
    "moved: read and written, if no cache kept them; weights: of these, what is read of the "
    "models' weights; needed: weights, used rows of the caches, results; ratio: moved over needed; "
    "ms: for what is moved at the memory's rate / for the products at the full bfloat16 rate"
)
_LAUNCHES = (
    "layer: kernels in a layer of the target, the median; mean: all kernels over the number of "
    "layers; s: to compile"
)
_GRAPHS = "; graphs: CUDA graphs, and how many of the kernels are inside"
_MEMORY = (
    "MB; arguments: weights, caches and the rest of the state; temporary: besides these and "
    "results; peak: all in use at once; in place: number of arguments whose memory results take"
)
_CARE = (
    "sort: entries in the longest row that is sorted; copies: MB; caches: copied, and updated not "
    "in place; host: transfers and callbacks in loops, and outside of them"
)
_ROOM = (
    "GB of each device; weights: its part of target and drafter, and embeddings whole; caches: "
    "of the sequences of the setting; tokens: of all sequences, whose keys and values fit into "
    "what weights and temporary memory leave"
)
_EXCHANGE = (
    "in a program, by each device; sums: all-reduces, and MB of their results; others, and KB of "
    "theirs; latency: ms if there were no bytes; ms: with the bytes at the links' rate"
)
_PREDICTION = (
    "ms; memory, compute: bytes and operations of a device's part at {efficiency:.0%} of the data "
    "sheet's rates; links: exchanges; hidden: the part of these in which a TPU reads what it "
    "prefetches; step: memory and the exchanges that are not hidden, or compute and all of them; "
    "tok/s: of all sequences, {tau:g} tokens a tree"
)
_WIDTH = 30  # of a kernel's name, so that the table fits into 80 columns
_KIND = 9  # letters of its kind
_NAMED = 6  # places of kernels outside of CUDA graphs


def traffic(summaries: Sequence[Summary], accelerator: Accelerator) -> Grid:
    """What each program moves through the device's memory."""
    large = max((x.moved for x in summaries), default=0) >= 1e9
    name, unit = ("GB", 1e9) if large else ("MB", 1e6)
    columns: dict[str, Callable[[Summary], str]] = {
        "moved": lambda x: f"{x.moved / unit:.2f}",
        "weights": lambda x: f"{x.weights_read / unit:.2f}",
        "needed": lambda x: "-" if x.least is None else f"{x.least.bytes / unit:.2f}",
        "ratio": lambda x: "-" if x.ratio is None else f"{x.ratio:.2f}",
        "ms": lambda x: (
            f"{1e3 * x.moved / accelerator.bandwidth:.2f} / {_compute_time(x, accelerator)}"
        ),
    }
    return _grid(f"Memory traffic in {name}", columns, summaries, accelerator, _TRAFFIC)


def _compute_time(summary: Summary, accelerator: Accelerator) -> str:
    """Milliseconds of the products at the device's rate, which is that of bfloat16."""
    if summary.least is None or summary.case.dtype != "bfloat16":
        return "-"
    return f"{1e3 * summary.least.operations / accelerator.rate:.2f}"


def launches(summaries: Sequence[Summary], accelerator: Accelerator) -> Grid:
    """What each program runs."""
    columns: dict[str, Callable[[Summary], str]] = {
        "kernels": lambda x: f"{x.launches:,}",
        "layer": lambda x: f"{x.of_a_layer:g}",
        "mean": lambda x: f"{x.per_layer:.1f}",
    }
    on_gpu = any(x.graphs for x in summaries)
    if on_gpu:
        columns |= {
            "graphs": lambda x: "-" if x.graphs is None else f"{x.graphs.count}",
            "inside": lambda x: "-" if x.in_graphs is None else f"{x.in_graphs:,}",
        }
    columns["s"] = lambda x: f"{x.seconds:.0f}"
    caption = _LAUNCHES + _GRAPHS * on_gpu
    return _grid("Kernels", columns, summaries, accelerator, caption)


def memory(summaries: Sequence[Summary], accelerator: Accelerator) -> Grid:
    """What each program needs of the device's memory."""
    columns: dict[str, Callable[[Summary], str]] = {
        "arguments": lambda x: f"{x.arguments / 1e6:,.0f}",
        "temporary": lambda x: f"{x.temporary / 1e6:,.0f}",
        "peak": lambda x: f"{x.peak / 1e6:,.0f}",
        "in place": lambda x: f"{x.updated_in_place}",
    }
    return _grid("Memory in use", columns, summaries, accelerator, _MEMORY)


def room(summaries: Sequence[Summary], setting: Setting) -> Grid:
    """What fits into the memory of each of several devices."""
    accelerator = setting.accelerator

    def fits(x: Summary) -> str:
        return "yes" if x.room(accelerator.memory).left >= x.case.whole.cache_bytes else "no"

    columns: dict[str, Callable[[Summary], str]] = {
        "weights": lambda x: f"{x.room(accelerator.memory).weights / 1e9:.2f}",
        "caches": lambda x: f"{x.case.whole.cache_bytes / 1e9:.2f}",
        "temporary": lambda x: f"{x.room(accelerator.memory).temporary / 1e9:.2f}",
        "fits": fits,
        "tokens": lambda x: f"{x.room(accelerator.memory).tokens:,}",
    }
    title = f"Memory, of {accelerator.memory / 1e9:.0f} GB"
    return _grid(title, columns, summaries, accelerator, _ROOM)


def exchanges(summaries: Sequence[Summary], setting: Setting) -> Grid:
    """What several devices exchange."""

    def reduced(x: Summary) -> Total:
        return Total.of(each for each in x.exchanged if each.kind == "all-reduce")

    def others(x: Summary) -> Total:
        return Total.of(each for each in x.exchanged if each.kind != "all-reduce")

    def latency(x: Summary) -> float:
        return setting.exchange(each._replace(bytes=0) for each in x.exchanged)

    columns: dict[str, Callable[[Summary], str]] = {
        "sums": lambda x: f"{reduced(x).count}",
        "MB": lambda x: f"{reduced(x).bytes / 1e6:.2f}",
        "others": lambda x: f"{others(x).count}",
        "KB": lambda x: f"{others(x).bytes / 1e3:.2f}",
        "latency": lambda x: f"{1e3 * latency(x):.2f}",
        "ms": lambda x: f"{1e3 * setting.exchange(x.exchanged):.2f}",
    }
    return _grid("Exchanges", columns, summaries, setting.accelerator, _EXCHANGE)


def prediction(summaries: Sequence[Summary], setting: Setting) -> Grid:
    """What a step would take."""
    accelerator, steps = setting.accelerator, [x for x in summaries if x.program == "step"]

    def per(rate: float, what: str) -> Callable[[Summary], str]:
        def show(x: Summary) -> str:
            cost = x.case.whole.least("step")
            return "-" if cost is None else f"{1e3 * getattr(cost, what) / rate:.2f}"

        return show

    def speed(x: Summary) -> str:
        found = x.tokens_per_second(setting)
        return "-" if found is None else f"{found:,.0f}"

    columns: dict[str, Callable[[Summary], str]] = {
        "memory": per(setting.bandwidth, "bytes"),
        "compute": per(setting.rate, "operations"),
        "links": lambda x: f"{1e3 * setting.exchange(x.exchanged):.2f}",
        "hidden": lambda x: f"{1e3 * setting.hidden(x.exchanged):.2f}",
        "step": lambda x: f"{1e3 * (x.seconds_of_step(setting) or 0):.2f}",
        "tok/s": speed,
    }
    caption = _PREDICTION.format(efficiency=setting.efficiency, tau=setting.tau)
    return _grid("Prediction", columns, steps, accelerator, caption)


def care(summaries: Sequence[Summary], accelerator: Accelerator) -> Grid:
    """What each program had better not do."""
    columns: dict[str, Callable[[Summary], str]] = {
        "sort": lambda x: f"{max((k.sorted for k in x.kernels), default=0):,}",
        "copies": lambda x: f"{x.copied / 1e6:.1f}",
        "caches": lambda x: f"{x.caches_copied} / {x.caches_not_in_place}",
        "host": lambda x: f"{x.host(in_loop=True)} / {x.host(in_loop=False)}",
    }
    return _grid("Sorts, copies and transfers", columns, summaries, accelerator, _CARE)


# What distinguishes settings; what they have in common is in a table's title.
_SETTING: dict[str, Callable[[Case], str]] = {
    "batch": lambda case: f"{case.batch}",
    "tree": lambda case: f"{case.nodes or '-'}",
    "context": lambda case: f"{case.context}",
    "stored": lambda case: "int8" if case.weights == "int8" else XLA_NAMES[case.dtype],
}


def _grid(
    title: str,
    columns: dict[str, Callable[[Summary], str]],
    summaries: Sequence[Summary],
    accelerator: Accelerator,
    caption: str,
) -> Grid:
    cases = [x.case for x in summaries]
    shapes = {case.shape for case in cases}
    values = {name: {show(case) for case in cases} for name, show in _SETTING.items()}
    varied = [name for name, found in values.items() if len(found - {"-"}) > 1]
    common = [
        f"{name} {max(found)}"
        for name, found in values.items()
        if name not in varied and found - {"-"}
    ]
    rows = [
        [
            " ".join([x.case.shape] * (len(shapes) > 1) + [x.case.method, x.program]),
            *(_SETTING[name](x.case) for name in varied),
            *(show(x) for show in columns.values()),
        ]
        for x in summaries
    ]
    where = ", ".join([*(shapes if len(shapes) == 1 else ()), *common])
    devices = max((case.devices for case in cases), default=1)
    many = f"{devices} x " if devices > 1 else ""
    head = f"{title}, compiled for {many}{accelerator.title}\n{where}"
    return Grid(head, ["program", *varied, *columns], rows, caption)


def outside_graphs(summary: Summary) -> str:
    """What a program launches outside of CUDA graphs, in a line; empty if there is nothing."""
    found = dict.fromkeys(
        f"{x.path or x.name} ({x.source or x.kind})" for x in summary.outside_graphs
    )
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    names = ", ".join([*found][:_NAMED] + more)
    count = summary.launches - (summary.in_graphs or 0)
    program = f"{summary.case.method} {summary.program}, batch {summary.case.batch}"
    return f"{program}: {count} kernels outside of CUDA graphs: {names}" if found else ""


def details(summary: Summary, count: int) -> Grid:
    """The kernels that move the most besides weights and caches; a layer's stand for all."""
    groups: dict[tuple[str, str, str], list[Kernel]] = {}
    for kernel in summary.kernels:
        path = re.sub(r"\blayer_\d+\b", "layer", kernel.path)
        groups.setdefault((path, kernel.kind, kernel.source), []).append(kernel)
    largest = sorted(groups.items(), key=lambda x: -sum(k.intermediate for k in x[1]))
    rows = [
        [
            f"…{path[1 - _WIDTH :]}" if len(path) > _WIDTH else path or "-",
            source or "-",
            f"{kind[: _KIND - 1]}…" if len(kind) > _KIND else kind,
            f"{sum(k.times * k.launches for k in same)}",
            _megabytes(sum(k.intermediate for k in same)),
            _megabytes(sum(k.moved for k in same)),
        ]
        for (path, kind, source), same in largest[:count]
    ]
    case = summary.case
    title = f"{case.shape} {case.method} {summary.program}, batch {case.batch}: largest kernels"
    columns = ["kernel", "source", "kind", "times", "temp", "all"]
    caption = "temp: MB that only other kernels use, neither weights nor caches; all: MB with these"
    return Grid(title, columns, rows, caption)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.{0 if size >= 1e8 else 1}f}"
