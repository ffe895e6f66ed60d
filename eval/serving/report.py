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
from eval.serving.config import ServingConfig
from eval.serving.summary import PERCENTILES, Load, Slo, Summary

_THROUGHPUT = (
    "req/s, tok/s: requests and new tokens a second; good/s: requests a second whose first token "
    "came within {ttft:g} ms and whose others took at most {tpot:g} ms each; medians of {rounds} "
    "rounds. ratio: the first server's tok/s to this one's, TPOT: this one's median TPOT to the "
    "first server's, both round by round, ± half the range. tau: tokens per verification, bonus "
    "token included; tok/chunk: tokens of a chunk; same: texts of the first server's"
)
_LATENCY = (
    "in ms, 50th, 90th and 99th percentile of the requests of all rounds. TTFT: to the first "
    "token. TPOT: from the first to the last token, for each token after the first. ITL: between "
    "chunks, which hold several tokens where drafts are accepted: compare TPOT, not ITL. total: "
    "to the last token"
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

    config: ServingConfig
    workload: str
    servers: dict[str, str]
    summaries: Sequence[Summary]
    compilations: dict[str, float | None]

    @property
    def slo(self) -> Slo:
        """The times that goodput counts."""
        return Slo(self.config.slo_ttft, self.config.slo_tpot)

    def first(self, load: Load) -> Summary:
        """The first server's summary of a load."""
        return next(each for each in self.summaries if each.load == load)

    @property
    def grids(self) -> list[Grid]:
        """The tables."""
        return [self._throughput(), self._latency()]

    def _throughput(self) -> Grid:
        kind = "rate" if self.config.rate else "clients"
        columns = [kind, "server", "req/s", "tok/s", "good/s", "ratio", "TPOT"]
        columns += ["tau", "tok/chunk", "reused", "same", "errors"]
        rows = [self._throughput_cells(each) for each in self.summaries]
        caption = _THROUGHPUT.format(
            ttft=1e3 * self.slo.ttft, tpot=1e3 * self.slo.tpot, rounds=self.config.rounds
        )
        return Grid(self.workload, columns, rows, caption)

    def _throughput_cells(self, each: Summary) -> list[str]:
        first, counters = self.first(each.load), each.counters

        def median(values: Sequence[float], form: str = ",.1f") -> str:
            return f"{statistics.median(values):{form}}"

        def ratio(values: Sequence[float]) -> str:
            return spread(values, ".2f", "x") if values and each is not first else ""

        return [
            str(each.load),
            each.way,
            median([one.request_rate for one in each.rounds]),
            median([one.token_rate for one in each.rounds], ",.0f"),
            median([one.goodput(self.slo) for one in each.rounds]),
            ratio(first.token_ratios(each)),
            ratio(first.tpot_ratios(each)),
            "-" if counters.tau is None else f"{counters.tau:.2f}",
            "-" if each.chunk_tokens is None else f"{each.chunk_tokens:.2f}",
            "-" if counters.reused is None else f"{counters.reused:.0%}",
            "" if each.same is None else f"{each.same[0]}/{each.same[1]}",
            str(len(each.errors)),
        ]

    def _latency(self) -> Grid:
        kind = "rate" if self.config.rate else "clients"
        columns = [kind, "server", "TTFT", "TPOT", "ITL", "total"]
        rows = [
            [str(each.load), each.way, *(_three(values) for values in each.times.values())]
            for each in self.summaries
        ]
        return Grid(f"Latency, p{', p'.join(map(str, PERCENTILES))}", columns, rows, _LATENCY)

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
        busiest = max(one.client_cpu for each in self.summaries for one in each.rounds)
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
    return f"{ms:,.0f}" if ms >= 99.95 else f"{ms:.1f}" if ms >= 9.995 else f"{ms:.2f}"
