"""One setting of a measurement: a benchmark, a temperature and a batch size, for all methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from eval.methods.measure import Run, Summary, summarize
from eval.methods.registry import PLAIN
from eval.methods.tree_size import Tree
from eval.speedup.workload import Workload


@dataclasses.dataclass(frozen=True)
class Setting:
    """The results of all methods in one setting.

    Attributes:
      workload: the benchmark.
      temperature: sampling temperature.
      batch_size: prompts decoded together.
      trees: method -> its draft tree.
      groups: group of prompts -> method -> summary; `all` pools the groups, and is the only one if
        batches mix groups.
    """

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
    def step_costs(self) -> dict[str, float]:
        """Method -> time per step over time per plain step, without prefill."""
        plain = self.all[PLAIN].step_seconds
        return {name: row.step_seconds / plain for name, row in self.all.items()}

    def as_json(self) -> dict[str, Any]:
        """Returns everything but the prompts."""
        return {
            "bench": self.workload.name,
            "source": self.workload.source,
            "temperature": self.temperature,
            "batch_size": self.batch_size,
            "max_length": self.workload.max_length,
            "trees": {name: tree._asdict() for name, tree in self.trees.items()},
            "step_costs": self.step_costs,
            "groups": {
                group: {name: row.as_json() for name, row in rows.items()}
                for group, rows in self.groups.items()
            },
        }


def by_group(repeats: list[list[Run]], methods: Sequence[str]) -> dict[str, dict[str, Summary]]:
    """Returns a summary per prompt group and method, and one of all prompts; only the latter if
    some batches mix groups, since their time belongs to no single group."""
    names = list(dict.fromkeys(run.group for run in repeats[0]))
    parts = {
        name: [[run for run in runs if run.group == name] for runs in repeats]
        for name in names
        if name is not None and None not in names
    }
    return {
        name: {method: summarize(runs, method, PLAIN) for method in methods}
        for name, runs in {**parts, "all": repeats}.items()
    }
