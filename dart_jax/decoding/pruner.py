"""The tree search on the host: turns the candidates in a host buffer into a packed draft tree.

A `Pruner` is called between two jitted steps, or inside one jitted program: on CPU, XLA calls the
C++ search directly; on other platforms `jax.pure_callback` calls it. The callback uses only numpy:
running a JAX computation inside one can deadlock.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from functools import cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax import _core
from dart_jax.decoding.host_buffer import CONTEXT, DRAWS, HostBuffer
from dart_jax.machine import available_cores
from dart_jax.ngram import NgramModel


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """Parameters of the tree search (docs/method.md, section 3), with the paper's defaults.

    Attributes:
      beam: nodes per level that are extended.
      level_decay: exponent of the level weight.
      logit_decay: base of the logit weight.
      ngram_weight: weight of the n-gram model's log-probability.
      ties: among equal scores, `first` prefers the node created first; `compat` reproduces the
        reference's unstable sorts and is many times slower.
    """

    beam: int = 20
    level_decay: float = 0.7
    logit_decay: float = 0.9
    ngram_weight: float = 0.5
    ties: Literal["first", "compat"] = "first"


class Pruner:
    """Host buffer -> packed draft trees, int32 [B, 3, N + 1], nodes from the best on."""

    # Whether a program on CPU may call the C++ search directly instead of this object.
    native = True

    def __init__(
        self,
        host_buffer: HostBuffer,
        nodes: int,
        *,
        ngram: NgramModel | None = None,
        eos: tuple[int, ...] = (),
        search: SearchConfig = SearchConfig(),
        threads: int | None = None,
    ):
        """Creates the search for trees of N = `nodes` nodes.

        Args:
          host_buffer: layout of the packed candidates.
          nodes: N, the root not counted.
          ngram: n-gram model; None searches with only the drafter's scores. If the host buffer has
            no candidates, only the n-gram model drafts.
          eos: tokens that end a sequence.
          search: parameters.
          threads: rows of a batch searched in parallel; None uses all cores that this
            process may use.

        Raises:
          ValueError: a parameter is out of range.
        """
        self.host_buffer, self.nodes = host_buffer, nodes
        self._options = {"ngram": ngram, "eos": eos, "search": search, "threads": threads}
        self._search = _core.TreeSearch(
            ngram.core if ngram else None,
            nodes=nodes,
            eos=list(eos),
            threads=threads or available_cores(),
            **dataclasses.asdict(search),
        )
        self._handle = _core.SearchHandle(self._search)
        _pruners[self.handle] = self

    def resized(self, host_buffer: HostBuffer, nodes: int) -> Pruner:
        """The same search for trees of another size."""
        return type(self)(host_buffer, nodes, **self._options)

    def __repr__(self) -> str:
        return f"Pruner({self.nodes} nodes)"

    @property
    def handle(self) -> int:
        """Identifies the pruner in a compiled program (see `search_in_jit`)."""
        return self._handle.value

    @property
    def seconds(self) -> float:
        """Search time since this was last set to 0."""
        return self._search.seconds

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._search.seconds = value

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """Searches the trees of one step, on the host."""
        return self._run(np.asarray(packed), None)

    def scored(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the trees, and the scores of their nodes, float32 [B, N + 1] (docs/method.md,
        section 3): at most 0; 0 for the root and unused slots."""
        packed = np.asarray(packed)
        scores = np.empty((len(packed), self.nodes + 1), np.float32)
        return self._run(packed, scores), scores

    def _run(self, packed: np.ndarray, scores: np.ndarray | None) -> np.ndarray:
        """Returns the trees, and writes their nodes' scores unless there is no place for them."""
        trees = np.empty((len(packed), 3, self.nodes + 1), np.int32)
        buffer = self.host_buffer
        self._search.search(
            *buffer.candidates_of(packed),
            trees,
            pairs=buffer.pairs_of(packed) if buffer.pairs else None,
            draws=buffer.draws_of(packed),
            scores=scores,
        )
        return trees


# Handle -> pruner. A program may outlive a pruner; running it with a dead pruner's handle is an
# error.
_pruners: weakref.WeakValueDictionary[int, Pruner] = weakref.WeakValueDictionary()


def search_in_jit(
    host_buffer: HostBuffer,
    nodes: int,
    handle: jax.Array,
    packed: jax.Array,
    *,
    native: bool = True,
) -> jax.Array:
    """Searches the trees of one step inside a jitted program.

    The pruner is an argument of the program, so one program serves all pruners of the same shape,
    in every process.

    Args:
      host_buffer: layout of the packed candidates.
      nodes: N.
      handle: int32 scalar, `Pruner.handle`.
      packed: int32 [B, width].
      native: on CPU, let XLA call the C++ search directly, without Python.

    Returns:
      The trees, int32 [B, 3, N + 1].
    """
    out = jax.ShapeDtypeStruct((packed.shape[0], 3, nodes + 1), jnp.int32)
    python = partial(_search_through_python, out)
    if not (native and _foreign_function()):
        return python(handle, packed)
    foreign = partial(
        jax.ffi.ffi_call(_FOREIGN_FUNCTION, out),
        context=np.int64(CONTEXT),
        first=np.int64(host_buffer.first),
        levels=np.int64(host_buffer.positions),
        candidates=np.int64(host_buffer.candidates),
        pairs=np.int64(math.prod(host_buffer.pairs_shape)),
        draws=np.int64(DRAWS if host_buffer.draws else 0),
    )
    return jax.lax.platform_dependent(handle, packed, cpu=foreign, default=python)


def _search_through_python(
    out: jax.ShapeDtypeStruct, handle: jax.Array, packed: jax.Array
) -> jax.Array:
    """Calls the pruner through a Python callback, on any platform.

    The rows are passed in parts: to copy an array above 100 KiB for a callback, JAX on CPU waits
    for a thread, which never comes if there is only one core.
    """
    rows = max(1, _COPIED_AT_ONCE // (packed.shape[1] * packed.dtype.itemsize))
    parts = [packed[i : i + rows] for i in range(0, packed.shape[0], rows)]
    return jax.pure_callback(_call, out, handle, *parts)


def _call(handle: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    return _pruners[int(handle)](np.concatenate([np.asarray(part) for part in parts]))


_FOREIGN_FUNCTION = "dart_search"

# Bytes of the largest array that JAX passes to a callback without using another thread.
_COPIED_AT_ONCE = 100 * 1024


@cache
def _foreign_function() -> bool:
    """Registers the search with XLA; returns False if the extension was built without XLA's FFI or
    for another jaxlib."""
    if _core.ffi_handler is None:
        return False
    try:
        jax.ffi.register_ffi_target(_FOREIGN_FUNCTION, _core.ffi_handler, platform="cpu")
    except (jax.errors.JaxRuntimeError, ValueError):
        return False
    return True
