"""The tree search on the device, as a part of jitted programs, on any platform."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import numpy as np

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.search.base import SearchWay
from dart_jax.decoding.search.beam import beam_search
from dart_jax.decoding.search.best_first import best_first_search
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.errors import UserError
from dart_jax.ngram.device_table import DeviceTable

OTHER_TIES = "a search on the device needs SearchConfig(ties='first')"


@dataclasses.dataclass(frozen=True)
class DeviceSearchProgram:
    """The search as a part of jitted programs; called with an n-gram table.

    Attributes:
      host_buffer: layout of the packed candidates. Without any, only the n-gram model drafts.
      nodes: N.
      eos: tokens that end a sequence.
      search: parameters.
    """

    host_buffer: HostBuffer
    nodes: int
    eos: tuple[int, ...]
    search: SearchConfig

    def __call__(self, table: DeviceTable | None, packed: jax.Array) -> jax.Array:
        """Searches trees.

        Args:
          table: the n-grams; None searches with only the drafter's scores.
          packed: int32 [B, width].

        Returns:
          int32 [B, 3, N + 1], as of a `Pruner`, ties included.
        """
        buffer = self.host_buffer
        context, tokens, logits, pairs, draws = buffer.unpack(packed)
        with jax.named_scope("search"):
            if buffer.candidates == 0:
                assert table is not None
                search = partial(best_first_search, depth=buffer.positions)
                return search(table, context, draws, nodes=self.nodes, eos=self.eos)
            search = partial(beam_search, nodes=self.nodes, eos=self.eos, search=self.search)
            return search(table, context, tokens, logits, pairs)


class DeviceSearch:
    """Host buffer -> packed draft trees, searched on the device; see `TreeSearch`."""

    way: SearchWay = "device"
    seconds = 0.0  # on the host

    def __init__(
        self,
        host_buffer: HostBuffer,
        nodes: int,
        *,
        table: DeviceTable | None = None,
        eos: tuple[int, ...] = (),
        search: SearchConfig = SearchConfig(),
    ):
        """Creates the search for trees of N = `nodes` nodes.

        Args:
          host_buffer: layout of the packed candidates.
          nodes: N, the root not counted.
          table: the n-grams, on the device; None searches with only the drafter's scores. If the
            host buffer has no candidates, it has lists of followers, and only it drafts.
          eos: tokens that end a sequence.
          search: parameters.

        Raises:
          UserError: the parameters need a search on the host.
          ValueError: a parameter is out of range.
        """
        if search.ties != "first":
            raise UserError(OTHER_TIES)
        if search.beam < 1 or nodes < 0:
            raise ValueError("tree search: beam must be at least 1, and nodes not negative")
        self.table, self.nodes = table, nodes
        self.in_program = DeviceSearchProgram(host_buffer, nodes, eos, search)

    def __repr__(self) -> str:
        return f"DeviceSearch({self.nodes} nodes)"

    @property
    def argument(self) -> DeviceTable | None:
        """What programs pass to the search."""
        return self.table

    def __call__(self, packed: np.ndarray) -> jax.Array:
        """Searches the trees of one step, in a program of its own."""
        return _search(self.in_program, self.table, packed)

    def resized(self, host_buffer: HostBuffer, nodes: int) -> DeviceSearch:
        """The same search for trees of another size."""
        made = self.in_program
        return DeviceSearch(host_buffer, nodes, table=self.table, eos=made.eos, search=made.search)

    def check(self) -> None:
        """Nothing fails without failing its program."""


@partial(jax.jit, static_argnums=0)
def _search(
    program: DeviceSearchProgram, table: DeviceTable | None, packed: jax.Array
) -> jax.Array:
    return program(table, packed)
