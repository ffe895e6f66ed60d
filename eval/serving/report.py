"""The tables, what must be said about them, and the JSON report."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Sequence
from typing import Any

from dart_jax.programs.provenance import environment, revision
from dart_jax.programs.spread import spread
from eval.latency.report import Grid
from eval.serving.config import ServingBenchConfig
from eval.serving.summary import PERCENTILES, Load, Slo, Summary

_THROUGHPUT = (
    "medians of {rounds} rounds. good/s: requests a second whose first token came within {ttft:g} "
    "ms and whose others took at most {tpot:g} ms each. tau: tokens per verification, bonus token "
    "included; chunk: tokens in a chunk; reused: prompt tokens that the prefix cache had"
)
_RATIOS = (
    "ratios round by round, median ± half the range; above 1 the {first} server is better. TTFT, "
    "TPOT: of the rounds' medians. same: answers with the same text"
)
_LATENCY = (
    "50th, 90th and 99th percentile of the requests of all rounds. TTFT: to the first token. "
    "TPOT: from the first to the last token, for each token after the first. ITL: between chunks, "
    "which hold several tokens where drafts are accepted: compare TPOT, not ITL. total: to the "
    "last token"
)


@dataclasses.dataclass(frozen=True)
class Report:
    """All that was measured.

    Attributes:
      config: the options.
      workload: its title.
      servers: what each way is, by name.
      summaries: of each load and way.
      compilations: programs that each server compiled after its warm-up; None if it does not tell.
    """

    config: ServingBenchConfig
    workload: str
    servers: dict[str, str]
    summaries: Sequence[Summary]
    compilations: dict[str, float | None]

    @property
    def slo(self) -> Slo:
        """The times that goodput counts."""
        return Slo(self.config.slo_ttft, self.config.slo_tpot)

    @property
    def name(self) -> str:
        """The first server's name, with which the others are compared."""
        return self.summaries[0].way

    def first(self, load: Load) -> Summary:
        """The first server's summary of a load."""
        return next(each for each in self.summaries if each.load == load)

    @property
    def grids(self) -> list[Grid]:
        """The tables."""
        return [self._throughput(), *self._ratios(), self._latency()]

    @property
    def _kind(self) -> str:
        return "rate" if self.config.rate else "clients"

    def _throughput(self) -> Grid:
        columns = [self._kind, "server", "req/s", "tok/s", "good/s", "tau", "chunk", "reused"]
        caption = _THROUGHPUT.format(
            ttft=1e3 * self.slo.ttft, tpot=1e3 * self.slo.tpot, rounds=self.config.rounds
        )
        rows = [self._throughput_cells(each) for each in self.summaries]
        return Grid(self.workload, [*columns, "failed"], rows, caption)

    def _throughput_cells(self, each: Summary) -> list[str]:
        counters, rounds = each.counters, each.rounds
        requests = statistics.median(one.request_rate for one in rounds)
        tokens = statistics.median(one.token_rate for one in rounds)
        good = statistics.median(one.goodput(self.slo) for one in rounds)
        return [
            str(each.load),
            each.way,
            f"{requests:,.1f}",
            f"{tokens:,.0f}",
            f"{good:,.1f}",
            "-" if counters.tau is None else f"{counters.tau:.2f}",
            "-" if each.chunk_tokens is None else f"{each.chunk_tokens:.2f}",
            "-" if counters.reused is None else f"{counters.reused:.0%}",
            str(len(each.errors)),
        ]

    def _ratios(self) -> list[Grid]:
        """The first server beside each other one; nothing if there is only one."""
        rows = [self._ratio_cells(each) for each in self.summaries if each.way != self.name]
        if not rows:
            return []
        columns = [self._kind, "over", "tok/s", "TPOT", "TTFT", "same"]
        title = f"{self.name[0].upper()}{self.name[1:]} over the others"
        return [Grid(title, columns, rows, _RATIOS.format(first=self.name))]

    def _ratio_cells(self, each: Summary) -> list[str]:
        first = self.first(each.load)
        ratios = (first.token_ratios(each), first.ratios(each, "tpot"), first.ratios(each, "ttft"))
        same = "-" if each.same is None else f"{each.same[0]}/{each.same[1]}"
        shown = [spread(values, ".2f", "x") if values else "-" for values in ratios]
        return [str(each.load), each.way, *shown, same]

    def _latency(self) -> Grid:
        # Just 80 columns, with these names and times below 10 seconds.
        columns = ["load", "server", "TTFT", "TPOT", "ITL", "total"]
        rows = [
            [str(each.load), each.way, *(_three(values) for values in each.times.values())]
            for each in self.summaries
        ]
        title = f"Milliseconds: p{', p'.join(map(str, PERCENTILES))}"
        return Grid(title, columns, rows, _LATENCY)

    @property
    def remarks(self) -> list[str]:
        """What a reader must know about the figures, in lines."""
        lines = [f"{name}: {what}" for name, what in self.servers.items()]
        for name, count in self.compilations.items():
            if count is None:
                lines.append(f"{name}: does not tell whether it compiled after its warm-up")
            elif count:
                lines.append(
                    f"WARNING: {name} compiled {count:g} programs after its warm-up; the times "
                    "include them"
                )
            else:
                lines.append(f"{name}: compiled nothing after its warm-up")
        for each in self.summaries:
            if each.errors:
                lines.append(
                    f"WARNING: {each.way} at {each.load}: {len(each.errors)} requests failed, the "
                    f"first with: {each.errors[0]}"
                )
        rounds = [one for each in self.summaries for one in each.rounds if one.streamed]
        busiest = max(one.client_cpu for one in rounds)
        lines.append(f"the load generator took at most {busiest:.0%} of a core")
        if self.config.rate:
            late = max(each.late for each in self.summaries)
            lines.append(f"the latest request was sent {1e3 * late:.1f} ms after its arrival")
        return lines

    def markdown(self) -> str:
        """Everything as Markdown."""
        tables = [grid.markdown() for grid in self.grids]
        return "\n".join([*tables, *(f"- {line}" for line in self.remarks), ""])

    def as_json(self) -> dict[str, Any]:
        """All measurements and everything needed to repeat them."""
        return {
            "environment": environment(),
            "revision": revision(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "config": dataclasses.asdict(self.config),
            "workload": self.workload,
            "servers": self.servers,
            "compilations": self.compilations,
            "slo": self.slo._asdict(),
            "loads": [each.as_json(self.slo, self.first(each.load)) for each in self.summaries],
        }


def _three(values: Sequence[float] | None) -> str:
    """Percentiles in ms."""
    return "-" if values is None else " ".join(_ms(value) for value in values)


def _ms(seconds: float) -> str:
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 99.95 else f"{ms:.1f}" if ms >= 9.995 else f"{ms:.2f}"
