"""The tree search on the host, in C++: candidates in a host buffer become packed draft trees.

A `HostSearch` is called between two jitted steps, or inside one jitted program. In one, XLA calls
the C++ search itself on CPUs; elsewhere `jax.pure_callback` calls it. The callback uses only numpy:
running a JAX computation inside one can deadlock.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax import _core
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.tree import TREE_ROWS
from dart_jax.machine import available_cores
from dart_jax.models.cpu import available
from dart_jax.ngram import NgramModel


@jax.tree_util.register_pytree_node_class
class HostSearch:
    """Host buffer -> packed draft trees, int32 [B, 4, N + 1], nodes from the best on.

    A pytree: programs take it as an argument, and are compiled for its shape alone. Its only leaf
    is a number that identifies it in this process, so one program serves all searches of a shape,
    in every process.

    Attributes:
      host_buffer: layout of the packed candidates.
      nodes: N.
      native: whether XLA calls the C++ search itself in programs; otherwise through Python.
      handle: int32 scalar, the number.
    """

    def __init__(
        self,
        host_buffer: HostBuffer,
        nodes: int,
        *,
        ngram: NgramModel | None = None,
        eos: tuple[int, ...] = (),
        search: SearchConfig = SearchConfig(),
        threads: int | None = None,
        native: bool | None = None,
    ):
        """Creates the search for trees of N = `nodes` nodes.

        Args:
          host_buffer: layout of the packed candidates.
          nodes: N, the root not counted.
          ngram: n-gram model, or None to search with only the drafter's scores. If the host buffer
            has no candidates, only the n-gram model drafts.
          eos: tokens that end a sequence.
          search: parameters.
          threads: rows of a batch searched in parallel, by default one per core that this process
            may use.
          native: see the attribute; by default True where XLA can, on CPUs.

        Raises:
          ValueError: a parameter is out of range.
        """
        self.host_buffer, self.nodes = host_buffer, nodes
        # With a core built for this jaxlib.
        here = jax.default_backend() == "cpu" and available()
        self.native = here if native is None else native
        self._options = {"ngram": ngram, "eos": eos, "search": search, "threads": threads}
        self._search = _core.TreeSearch(
            ngram.core if ngram else None,
            nodes=nodes,
            eos=list(eos),
            threads=threads or available_cores(),
            **dataclasses.asdict(search),
        )
        self.handle = jnp.int32(self._search.handle)
        _searches[self._search.handle] = self

    def tree_flatten(self) -> tuple[tuple[jax.Array], tuple[HostBuffer, int, bool]]:
        """Arguments of programs, none, and the static part that they are compiled for."""
        return (self.handle,), (self.host_buffer, self.nodes, self.native)

    @classmethod
    def tree_unflatten(cls, shape: tuple[HostBuffer, int, bool], leaves: Any) -> HostSearch:
        """Returns the search as programs see it, which only has `in_program`."""
        search = object.__new__(cls)
        search.host_buffer, search.nodes, search.native = shape
        (search.handle,) = leaves
        return search

    def resized(self, host_buffer: HostBuffer, nodes: int) -> HostSearch:
        """Returns the same search for trees of another size."""
        return type(self)(host_buffer, nodes, native=self.native, **self._options)

    def __repr__(self) -> str:
        return f"HostSearch({self.nodes} nodes)"

    def in_program(self, packed: jax.Array) -> jax.Array:
        """Searches trees inside a jitted program: int32 [B, width] -> int32 [B, 4, N + 1]."""
        out = jax.ShapeDtypeStruct((packed.shape[0], TREE_ROWS, self.nodes + 1), jnp.int32)
        if not self.native:
            return _search_through_python(out, self.handle, packed)
        attributes = {
            name: value if isinstance(value, bool) else np.int64(value)
            for name, value in self._layout.items()
        }
        return jax.ffi.ffi_call("dart_search", out)(self.handle, packed, **attributes)

    @property
    def _layout(self) -> dict[str, Any]:
        """The layout of the packed candidates, as the core takes it."""
        buffer = self.host_buffer
        return {
            "context": CONTEXT,
            "levels": buffer.positions,
            "candidates": buffer.candidates,
            "pairs": buffer.pairs,
            "draws": buffer.draws,
        }

    @property
    def seconds(self) -> float:
        """Time that all its searches took so far."""
        return self._search.seconds

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """Searches the trees of one step, between two programs."""
        packed = np.ascontiguousarray(packed)
        trees = np.empty((len(packed), TREE_ROWS, self.nodes + 1), np.int32)
        self._search.search(packed, trees, **self._layout)
        return trees


# By handle. A program may outlive a search; running it with the handle of one that is gone is an
# error.
_searches: weakref.WeakValueDictionary[int, HostSearch] = weakref.WeakValueDictionary()


def _search_through_python(
    out: jax.ShapeDtypeStruct, handle: jax.Array, packed: jax.Array
) -> jax.Array:
    """Calls the search through a Python callback, on any platform.

    The rows are passed in parts: to copy an array above 100 KiB for a callback, JAX on CPU waits
    for a thread, which never comes if there is only one core.
    """
    rows = max(1, _COPIED_AT_ONCE // (packed.shape[1] * packed.dtype.itemsize))
    parts = [packed[i : i + rows] for i in range(0, packed.shape[0], rows)]
    return jax.pure_callback(_call, out, handle, *parts)


def _call(handle: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    return _searches[int(handle)](np.concatenate([np.asarray(part) for part in parts]))


# Bytes of the largest array that JAX passes to a callback without using another thread.
_COPIED_AT_ONCE = 100 * 1024
