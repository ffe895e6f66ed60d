"""What a step on several devices would take, and what fits into their memory; computed, not
measured.

    step = max(bytes / bandwidth + exchanges - hidden, operations / rate + exchanges)

Bytes and operations are those of one device, by `eval.latency.cost`; bandwidth and rates are the
data sheets', times an efficiency if one is asked for. Exchanges follow one another, and nothing is
computed meanwhile. But a TPU goes on reading what is on its way into its vector memory, as the
compiled program shows: an exchange is hidden as long as that takes (`Collective.prefetched`).

An all-gather of m devices brings (m - 1) / m of its result to each:

    GPUs    latency + bytes / rate
    TPUs    max(hops * hop, bytes / (rate of a link * links that bring them))

On TPUs the hops are those between the chips that are furthest apart, added over the axes of the
slice: n - 1 along an axis of n chips, n / 2 where its links close a ring. Bytes come along all axes
at once, over one link of an axis, two of a ring. An all-reduce is a reduce-scatter and an
all-gather, twice as long; on GPUs its latency is what is reported for the whole. That is the model
of "How to Scale Your Model" (jax-ml.github.io/scaling-book/sharding, "What happens when we
AllGather over multiple axes?"). XLA's TPU programs name an algorithm of that kind: in a 4 x 4 slice
two dimensions, two phases, and two halves of the bytes that take the axes in opposite orders.

Not in there: the tree search, and what launches cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from eval.compile.collectives import Collective
from eval.compile.devices import Accelerator, rings
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

    @property
    def bandwidth(self) -> float:
        """Bytes per second that are read."""
        return self.accelerator.bandwidth * self.efficiency

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.accelerator.rate * self.efficiency

    def exchange(self, found: Iterable[Collective]) -> float:
        """Seconds of a program's exchanges, one after another."""
        return sum(x.times * self._exchange(x) for x in found)

    def hidden(self, found: Iterable[Collective]) -> float:
        """Seconds of these in which the memory is read nevertheless."""
        return sum(x.times * min(self._exchange(x), x.prefetched / self.bandwidth) for x in found)

    def _exchange(self, x: Collective) -> float:
        links, layout = self.accelerator.links, self.accelerator.topology(self.devices)
        passes = 2 if x.kind == "all-reduce" else 1
        arriving = x.bytes * (self.shards - 1) / self.shards
        if not self.accelerator.slices:
            return links.latency + passes * arriving / links.rate
        axes = [(n, ring) for n, ring in zip(layout, rings(layout), strict=True) if n > 1]
        hops = sum(n // 2 if ring else n - 1 for n, ring in axes)
        bringing = sum(2 if ring else 1 for _, ring in axes)
        return passes * max(hops * links.hop, arriving / (links.rate * bringing))

    def step(self, cost: Cost, found: Sequence[Collective]) -> float:
        """Seconds of a step that moves and computes so much on a device, and exchanges that."""
        exchange = self.exchange(found)
        reading = cost.bytes / self.bandwidth + exchange - self.hidden(found)
        return max(reading, cost.operations / self.rate + exchange)


@dataclasses.dataclass(frozen=True)
class Room:
    """The memory of a device, in bytes.

    Attributes:
      memory: all of it.
      weights: its part of the models.
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
