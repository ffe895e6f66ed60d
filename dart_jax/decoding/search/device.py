"""The tree search on the device, as a part of jitted programs, on any platform."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import ClassVar

import jax
import numpy as np

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.search.beam import beam_search
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.ngram.device_table import DeviceTable


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["table"],
    meta_fields=["host_buffer", "nodes", "eos", "search"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DeviceSearch:
    """Host buffer -> packed draft trees, int32 [B, 4, N + 1], as of a `HostSearch`, up to ties.

    A pytree: programs take it as an argument, and are compiled for all but the n-grams.

    Attributes:
      host_buffer: layout of the packed candidates.
      nodes: N, the root not counted.
      table: the n-grams, on the device, or None to search with only the drafter's scores.
      eos: tokens that end a sequence.
      search: parameters.
    """

    host_buffer: HostBuffer
    nodes: int
    _: dataclasses.KW_ONLY
    table: DeviceTable | None = None
    eos: tuple[int, ...] = ()
    search: SearchConfig = SearchConfig()

    seconds: ClassVar[float] = 0.0  # of searches on the host

    def __post_init__(self) -> None:
        if self.search.beam < 1 or self.nodes < 0:
            raise ValueError("tree search: beam must be at least 1, and nodes not negative")
        if self.host_buffer.candidates < 1:
            raise ValueError("a tree search on the device needs the candidates of a drafter")

    def __repr__(self) -> str:
        return f"DeviceSearch({self.nodes} nodes)"

    def in_program(self, packed: jax.Array) -> jax.Array:
        """Searches trees inside a jitted program: int32 [B, width] -> int32 [B, 4, N + 1]."""
        context, ids, logits, pairs = self.host_buffer.unpack(packed)
        with jax.named_scope("search"):
            return beam_search(
                self.table,
                context,
                ids,
                logits,
                pairs if self.host_buffer.pairs else None,
                nodes=self.nodes,
                eos=self.eos,
                search=self.search,
            )

    def __call__(self, packed: np.ndarray) -> jax.Array:
        """Searches the trees of one step, in a program of its own."""
        return _in_program(self, packed)

    def resized(self, host_buffer: HostBuffer, nodes: int) -> DeviceSearch:
        """Returns the same search for trees of another size."""
        return dataclasses.replace(self, host_buffer=host_buffer, nodes=nodes)


_in_program = jax.jit(DeviceSearch.in_program)
