"""One setting of a measurement: a benchmark, a temperature and a batch size, for all methods."""

from __future__ import annotations

import dataclasses

from eval.methods.measure import Summary
from eval.methods.registry import PLAIN
from eval.methods.tree_size import Tree


@dataclasses.dataclass(frozen=True)
class Setting:
    """The results of all methods in one setting.

    Attributes:
      bench: name of the benchmark.
      title: its title in tables.
      source: where its questions come from.
      temperature: sampling temperature.
      batch_size: prompts decoded together.
      max_length: rows of the KV cache.
      trees: method -> its draft tree.
      groups: group of prompts -> method -> summary; `all` pools the groups, and is the only one if
        batches mix groups.
    """

    bench: str
    title: str
    source: str
    temperature: float
    batch_size: int
    max_length: int
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
