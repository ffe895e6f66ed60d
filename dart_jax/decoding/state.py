"""What a decode step is compiled for, and the state that it updates."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any

import jax

from dart_jax.decoding.drafting import AnyDrafter, DraftingMethod, drafting_method
from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree
from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.sampling import SamplingValues
from dart_jax.models.cache import KVCache
from dart_jax.models.config import TargetConfig

# "target": its parameters; "drafter": those of the model that drafts, if one does; "draft_ids":
# int32 [Vd], a DART or EAGLE-3 drafter's vocabulary.
DecodeParams = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """What a step is compiled for.

    Attributes:
      target: the target's shapes.
      drafter: what tells how drafts are made; None decodes plainly.
      nodes: tree nodes without the root, N.
      candidates: a DART drafter's most likely tokens handed to the search at each position, k.
      eagle: how an EAGLE-3 drafter grows its trees.
      acceptance: tokens that every verification emits, on average, in place of what the target
        agrees with: to measure speed alone (see `accept.impose_tau`).
    """

    target: TargetConfig
    drafter: AnyDrafter | None = None
    nodes: int = 0
    candidates: int = 25
    eagle: Eagle3Tree = Eagle3Tree()
    acceptance: float | None = None

    @functools.cached_property
    def drafting(self) -> DraftingMethod | None:
        """How drafts are made; None decodes plainly."""
        if self.drafter is None or self.nodes == 0:
            return None
        return drafting_method(self.drafter, self.nodes, self.candidates, self.eagle)

    @property
    def searches(self) -> bool:
        """Whether trees come from the host's search."""
        return self.drafting is not None and self.drafting.searches

    @property
    def max_depth(self) -> int:
        """Deepest level of a tree."""
        return 0 if self.drafting is None else self.drafting.depth

    @functools.cached_property
    def host_buffer(self) -> HostBuffer:
        """The layout of what crosses to the host."""
        path = self.max_depth + 1
        if self.drafting is None:
            return HostBuffer(positions=0, candidates=0, path=path)
        return HostBuffer(self.drafting.positions, self.drafting.candidates, path)

    @property
    def prefill(self) -> DecodeConfig:
        """The same for every tree that is deep enough, where the prefill depends on no more."""
        return dataclasses.replace(self, nodes=self.max_depth) if self.searches else self

    def capacity(self, max_length: int) -> int:
        """Cache rows that sequences of up to `max_length` tokens need.

        A step writes a whole path behind the accepted rows; a multiple of 64 keeps shapes few.
        """
        return -(-(max_length + self.max_depth + 1) // 64) * 64


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "target_cache",
        "memory",
        "length",
        "context",
        "remaining",
        "stop",
        "seed",
        "sampling",
        "seen",
        "trees",
    ],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """Everything that changes from step to step, and what a call chooses.

    Attributes:
      target_cache: keys and values of all known tokens but the last, the root.
      memory: what the way of drafting remembers, such as the drafter's cache; None for nothing.
      length: int32 [B], rows in the target's cache; also the root's position.
      context: int32 [B, 4], the last tokens known, the root at the end; -1 where there are fewer.
      remaining: int32 [B], tokens still to be emitted; 0 for a finished row.
      stop: int32 [n], ids that end a sequence; -1 is none.
      seed: uint32 scalar.
      sampling: how the target draws.
      seen: bool [B, V], tokens known so far; None without a repetition penalty.
      trees: int32 [B, 3, N + 1], the next trees, where the device makes them; else None.
    """

    target_cache: KVCache
    memory: Any
    length: jax.Array
    context: jax.Array
    remaining: jax.Array
    stop: jax.Array
    seed: jax.Array
    sampling: SamplingValues
    seen: jax.Array | None = None
    trees: jax.Array | None = None

    @property
    def active(self) -> jax.Array:
        """Bool [B]: rows that go on."""
        return self.remaining > 0
