"""The statistics of all replicas together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from dart_jax.serving.statistics import Statistics, add

# What is now, not since the start.
_GAUGES = ("running", "waiting", "slots", "pages", "pages_used")


@dataclasses.dataclass(frozen=True)
class Report:
    """What a replica tells about itself.

    Attributes:
      replica: its id.
      node: address of its machine.
      pid: its process there.
      statistics: of its engine.
    """

    replica: str
    node: str
    pid: int
    statistics: Statistics


@dataclasses.dataclass(frozen=True)
class ClusterStatistics(Statistics):
    """The sums over all replicas, and what they are sums of.

    Attributes:
      reports: of the live replicas.
    """

    reports: tuple[Report, ...] = ()


class Totals:
    """Adds up reports. What a replica counted before it stopped stays, so that counts never fall.

    Attributes:
      live: the last report of each live replica, by id.
    """

    def __init__(self) -> None:
        """There is no replica."""
        self.live: dict[str, Report] = {}
        self._stopped = Statistics()

    def update(self, reports: Iterable[Report]) -> None:
        """Takes in new reports; replicas without one have stopped."""
        before, self.live = self.live, {report.replica: report for report in reports}
        for name, report in before.items():
            if name not in self.live:
                ended = dataclasses.replace(report.statistics, **dict.fromkeys(_GAUGES, 0))
                self._stopped = add(self._stopped, ended)

    def sum(self, accepted: int) -> ClusterStatistics:
        """Everything together.

        Args:
          accepted: requests that the server has accepted and that have not ended; those that do not
            run wait, even if no replica has them.
        """
        reports = tuple(self.live.values())
        total = functools.reduce(add, (report.statistics for report in reports), self._stopped)
        running = min(total.running, accepted)
        news = {"running": running, "waiting": accepted - running}
        news |= {"failed": not reports, "replicas": len(reports)}
        return ClusterStatistics(**vars(dataclasses.replace(total, **news)), reports=reports)
