"""One setting of a measurement: a benchmark, a temperature and a batch size, for all methods."""

from __future__ import annotations

import dataclasses

from eval.methods.measure import Summary
from eval.methods.registry import PLAIN
from eval.methods.tree_size import Tree


@dataclasses.dataclass(frozen=True)
class Setting:
    """One comparison of all methods.

    Attributes:
      bench: the benchmark's name.
      title: the benchmark's, in tables.
      source: where its questions come from.
      temperature: of the target's draws.
      batch_size: prompts decoded together.
      max_length: cache rows.
      trees: chosen for each method.
      groups: group of prompts -> method -> what its runs come to; `all` pools the groups, and is
        alone where batches hold prompts of several.
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
        """By method, of all prompts."""
        return self.groups["all"]

    @property
    def step_costs(self) -> dict[str, float]:
        """What a method's step takes, in plain decoding's steps, prefill apart."""
        plain = self.all[PLAIN].step_seconds
        return {name: row.step_seconds / plain for name, row in self.all.items()}
