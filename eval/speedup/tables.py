"""Results of a measurement, its tables, and its figure."""

from __future__ import annotations

import dataclasses
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from dart_jax.programs.outputs import write_bytes
from dart_jax.programs.tables import spread, table
from eval.benchmarks.prompts import Prompt
from eval.methods.measure import Summary
from eval.methods.registry import METHODS, PLAIN, Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Workload(NamedTuple):
    """Prompts of one benchmark.

    Attributes:
      source: file and line of its first question.
      sha256: of that file, if there is one.
      max_length: rows of the KV cache for these prompts alone.
      context: tokens to which they were lengthened, if they were.
      schema: JSON schema that all texts follow, if there is one.
    """

    name: str
    title: str
    source: str
    prompts: list[Prompt]
    max_length: int
    context: int | None = None
    schema: Mapping[str, Any] | None = None
    sha256: str | None = None

    @property
    def prompt_tokens(self) -> list[int]:
        """The length of each prompt, in tokens."""
        return [len(prompt.tokens) for prompt in self.prompts]

    @property
    def mean_tokens(self) -> float:
        """Their mean."""
        return statistics.mean(self.prompt_tokens)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Results of all methods on one benchmark, at one temperature and batch size: the trees by
    method, and by group of prompts the methods' summaries; `all` pools the groups, and is the only
    one if batches mix groups."""

    workload: Workload
    temperature: float
    batch_size: int
    trees: dict[str, Tree]
    groups: dict[str, dict[str, Summary]]

    @property
    def all(self) -> dict[str, Summary]:
        """Method -> summary over all prompts."""
        return self.groups["all"]

    @property
    def shown(self) -> dict[str, dict[str, Summary]]:
        """The groups of a table or figure: one alone is all, under the benchmark's title."""
        return {self.workload.title: self.all} if len(self.groups) <= 2 else self.groups

    @property
    def kind(self) -> tuple[int | None, float, int]:
        """Properties that several benchmarks' settings share: context, temperature, batch size."""
        return self.workload.context, self.temperature, self.batch_size

    @property
    def step_costs(self) -> dict[str, float]:
        """Method -> time per step over time per plain step, without prefill."""
        plain = self.all[PLAIN].step_seconds
        return {name: row.step_seconds / plain for name, row in self.all.items()}

    def as_json(self) -> dict[str, Any]:
        """Returns everything but the prompts and the schema."""
        load = self.workload
        groups = {
            group: {name: row.as_json() for name, row in rows.items()}
            for group, rows in self.groups.items()
        }
        return {
            **{"bench": load.name, "source": load.source, "sha256": load.sha256},
            **{"temperature": self.temperature, "batch_size": self.batch_size},
            **{"max_length": load.max_length},
            **{"context": load.context, "prompt_tokens": load.prompt_tokens},
            "trees": {name: tree._asdict() for name, tree in self.trees.items()},
            **{"step_costs": self.step_costs, "groups": groups},
        }


STAGES = {"prefill": "prefill", "device": "draft+verify", "search": "search"}


def speedup_table(title: str, groups: Mapping[str, Mapping[str, Summary]]) -> Table:
    """Returns a row per prompt group and method; the last group pools all prompts. One group alone
    is what `title` says."""
    rows: list[tuple[str, ...]] = []
    several = len(groups) > 1
    for group, methods in groups.items():
        rows += [(group, *[""] * 5)] * several
        for name, row in methods.items():
            speedup = spread(row.speedups, ".2f", "x")
            figures = f"{row.tau:.2f}", f"{row.identical}/{row.prompts}"
            if name == PLAIN:
                speedup, *figures = [""] * 3
            token = spread([1000 * each for each in row.token_seconds], ".2f")
            cells = spread(row.rates), speedup, token, *figures
            rows.append(("  " * several + METHODS[name].title, *cells))
    caption = (
        "tok/s: median over repeats and half the spread, prefill included\n"
        "speed-up: ratio of the rates, likewise\n"
        "ms/token: after each prompt's first token, without the prefill\n"
        "tau: tokens per verification, bonus included\n"
        "same: prompts whose output equals plain decoding's, token for token"
    )
    first = "prompts" if several else "method"
    return table(title, (first, "tok/s", "speed-up", "ms/token", "tau", "same"), rows, caption)


def time_table(rows: Mapping[str, Summary]) -> Table:
    """Returns the share of each stage in each method's time."""
    cells = [
        (
            METHODS[name].title,
            *(f"{row.shares[stage]:.1%}" if stage in row.shares else "-" for stage in STAGES),
        )
        for name, row in rows.items()
    ]
    caption = "draft+verify includes copies to the host"
    return table("Time by stage", ("method", *STAGES.values()), cells, caption)


# Title of a table of all settings -> its figure.
_FIGURES: dict[str, Callable[[Summary], float]] = {
    "tau": lambda row: row.tau,
    "ms per token, without the prefill": lambda row: 1000 * statistics.median(row.token_seconds),
    "speed-up, without the prefill": lambda row: statistics.median(row.decoding_speedups),
    "speed-up": lambda row: row.speedup,
}


def overview_tables(settings: Sequence[Setting]) -> list[Table]:
    """Returns a table for each of four figures, with a row per setting and a column per method;
    then the means over the benchmarks, if there are several."""
    names = list(settings[0].all)
    by_kind = kinds(settings)
    several = any(len(some) > 1 for some in by_kind.values())
    groups = [("mean", some) for some in by_kind.values()] if several else []
    groups = [(setting.workload.title, [setting]) for setting in settings] + groups
    tables = []
    for title, figure in _FIGURES.items():
        rows = [
            (
                name,
                f"{statistics.mean(each.workload.mean_tokens for each in some):,.0f}",
                f"{some[0].temperature:g}",
                str(some[0].batch_size),
                *(
                    f"{statistics.mean(figure(each.all[method]) for each in some):.2f}"
                    for method in names
                ),
            )
            for name, some in groups
        ]
        columns = ("benchmark", "tokens", "T", "batch", *(METHODS[name].title for name in names))
        tables.append(table(f"All settings: {title}", columns, rows, "tokens: of the mean prompt"))
    return tables


def kinds(settings: Sequence[Setting]) -> dict[tuple[int | None, float, int], list[Setting]]:
    """Returns the settings that differ only in the benchmark, by what they share."""
    groups: dict[tuple[int | None, float, int], list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.kind, []).append(setting)
    return groups


def write_figure(path: Path, settings: Sequence[Setting]) -> None:
    """Draws, in the format of the path's suffix, two panels for each context, temperature and batch
    size: speed-ups by benchmark, or by group of prompts if there is only one, with the range of the
    repeats; and how many verifications accept a drafted position. Needs matplotlib."""
    from matplotlib.figure import Figure

    rows = list(kinds(settings).values())
    names = [name for name in settings[0].all if name != PLAIN]
    figure = Figure(figsize=(10, 0.2 + 3.4 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 2, squeeze=False)
    for (speedups, acceptance), some in zip(panels, rows, strict=True):
        _draw(speedups, acceptance, some, names)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=min(len(names), 4),
    )
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format=path.suffix[1:])
    write_bytes(path, image.getvalue())


def _draw(speedups: Axes, acceptance: Axes, some: Sequence[Setting], names: Sequence[str]) -> None:
    """Draws settings that differ only in the benchmark."""
    one = some[0]
    groups = one.shown if len(some) == 1 else {each.workload.title: each.all for each in some}
    width = 0.8 / len(names)
    for n, name in enumerate(names):
        rows = [methods[name] for methods in groups.values()]
        places = [g + (n - (len(names) - 1) / 2) * width for g in range(len(rows))]
        below = [row.speedup - min(row.speedups) for row in rows]
        above = [max(row.speedups) - row.speedup for row in rows]
        label, errors = METHODS[name].title, {"yerr": (below, above), "capsize": 2.5}
        speedups.bar(places, [row.speedup for row in rows], width, label=label, **errors)
        curves = [setting.all[name].lengths for setting in some]
        reached = [
            statistics.mean(sum(curve[position:]) / max(1, sum(curve)) for curve in curves)
            for position in range(1, max(map(len, curves)))
        ]
        acceptance.plot(range(1, len(reached) + 1), reached, "o-", markersize=4)
    speedups.axhline(1, color="black", linewidth=0.8)
    rotated = {"rotation": 30, "ha": "right"} if len(groups) > 5 else {}
    speedups.set_xticks(range(len(groups)), list(groups), **rotated)
    context = "" if one.workload.context is None else f", context {one.workload.context:,}"
    title = f"Speed-up: T = {one.temperature:g}, batch {one.batch_size}{context}"
    speedups.set(ylabel="over plain decoding", title=title)
    title = "Verifications that accept a position"
    acceptance.set(xlabel="drafted position", title=title, ylim=(0, 1))
    acceptance.locator_params("x", integer=True)
