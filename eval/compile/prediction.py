"""What a step on several devices would take, and what fits into their memory; computed, not
measured.

    step = max(bytes / bandwidth, operations / rate) + exchange
    exchange = sum over collectives of (latency + hops * hop + sent bytes / rate of the links)

Bytes and operations are those of one device, by `eval.latency.cost`; bandwidth and rates are the
data sheets', times an efficiency if one is asked for. The devices send around a ring, an all-reduce
of m devices 2 (m - 1) / m of its result, others (m - 1) / m, and compute nothing meanwhile. Not in
there: the tree search, and what launches cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from eval.compile.collectives import Collective
from eval.compile.devices import Accelerator
from eval.latency.cost import Cost


@dataclasses.dataclass(frozen=True)
class Setting:
    """What predictions assume.

    Attributes:
      accelerator: kind of the devices.
      devices: how many there are.
      shards: how many of them share the target's weights.
      tau: tokens per verification of a tree, bonus token included.
      efficiency: share of the data sheet's bandwidth and rate that is reached.
    """

    accelerator: Accelerator
    devices: int
    shards: int
    tau: float
    efficiency: float = 1.0

    def exchange(self, found: Iterable[Collective]) -> float:
        """Seconds of a program's collectives, one after another."""
        links, layout = self.accelerator.links, self.accelerator.topology(self.devices)
        delay = links.latency + links.hop * sum(length - 1 for length in layout)
        share = (self.shards - 1) / self.shards
        return sum(
            x.times * (delay + (1 + (x.kind == "all-reduce")) * share * x.bytes / links.rate)
            for x in found
        )

    def step(self, cost: Cost, exchange: float) -> float:
        """Seconds of a step that moves and computes so much on a device."""
        bandwidth = self.accelerator.bandwidth * self.efficiency
        return cost.limit(bandwidth, self.accelerator.rate * self.efficiency) + exchange


@dataclasses.dataclass(frozen=True)
class Room:
    """The memory of a device, in bytes.

    Attributes:
      memory: all of it.
      weights: target's part and the whole drafter.
      temporary: of a step.
      token: what a cached token takes.
      groups: of devices; each has its own sequences.
    """

    memory: int
    weights: int
    temporary: int
    token: int
    groups: int = 1

    @property
    def left(self) -> int:
        """Bytes for caches; negative if the weights do not fit."""
        return self.memory - self.weights - self.temporary

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, of all groups, that fit into what is left."""
        return max(self.left // self.token, 0) * self.groups

    @property
    def with_int8(self) -> Room:
        """The same with weights of half the size."""
        return dataclasses.replace(self, weights=self.weights // 2)
