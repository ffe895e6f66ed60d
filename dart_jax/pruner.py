"""The host's side of a step: candidates come in one packed array, a draft tree goes back.

The same `Pruner` is called between two jitted steps, or as `jax.pure_callback` inside one jitted
program, where jax hands it its arguments as arrays of its own. It computes in numpy only: running
a JAX computation inside a callback can deadlock.
"""

from __future__ import annotations

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax import _core
from dart_jax.ngram import NgramModel

# Tokens handed over as n-gram context: enough for the highest order, 5.
CONTEXT = 4


@dataclasses.dataclass(frozen=True)
class Handover:
    """The layout of the int32 array [B, width] that crosses to the host after every step.

    Attributes:
      positions: drafted positions, d.
      candidates: candidates a position, k.
      path: most tokens a step can win, P.
    """

    positions: int
    candidates: int
    path: int

    def pack(
        self,
        context: jax.Array,
        count: jax.Array,
        active: jax.Array,
        tokens: jax.Array,
        ids: jax.Array,
        logits: jax.Array,
    ) -> jax.Array:
        """On the device: context [B, 4], count and active [B], tokens [B, P], ids and float32
        logits [B, d, k] -> int32 [B, width]. A finished row's root becomes -1."""
        b = context.shape[0]
        root = jnp.where(active, context[:, -1], -1)
        bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
        return jnp.concatenate(
            [
                count[:, None],
                tokens,
                context[:, :-1],
                root[:, None],
                ids.reshape(b, -1),
                bits.reshape(b, -1),
            ],
            axis=1,
        )

    def emitted(self, packed: np.ndarray) -> list[np.ndarray]:
        """The tokens each row won in the step."""
        return [row[1 : 1 + row[0]] for row in packed]

    def active(self, packed: np.ndarray) -> bool:
        """Whether any row goes on."""
        return bool((packed[:, self.path + CONTEXT] >= 0).any())

    def candidates_of(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Context int32 [B, 4], ids int32 [B, d, k] and logits float32 [B, d, k]."""
        shape = (len(packed), self.positions, self.candidates)
        first = 1 + self.path + CONTEXT
        middle = first + self.positions * self.candidates
        context = np.ascontiguousarray(packed[:, first - CONTEXT : first])
        ids = np.ascontiguousarray(packed[:, first:middle]).reshape(shape)
        bits = np.ascontiguousarray(packed[:, middle:]).reshape(shape)
        return context, ids, bits.view(np.float32)


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """The tree search's parameters (docs/method.md, section 3), with the paper's defaults."""

    beam: int = 20
    level_decay: float = 0.7
    logit_decay: float = 0.9
    ngram_weight: float = 0.5


class Pruner:
    """Packed candidates -> packed draft trees, int32 [B, 3, N + 1].

    Attributes:
      seconds: time spent searching since it was last set to 0.
    """

    def __init__(
        self,
        handover: Handover,
        nodes: int,
        *,
        ngram: NgramModel | None = None,
        eos: tuple[int, ...] = (),
        search: SearchConfig = SearchConfig(),
    ):
        self.handover, self.nodes, self.seconds = handover, nodes, 0.0
        self._search = _core.TreeSearch(
            ngram.core if ngram else None,
            nodes=nodes,
            eos=list(eos),
            **dataclasses.asdict(search),
        )

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """The trees of one step, on the host."""
        start = time.perf_counter()
        packed = np.asarray(packed)
        trees = np.empty((len(packed), 3, self.nodes + 1), np.int32)
        self._search.search(*self.handover.candidates_of(packed), trees)
        self.seconds += time.perf_counter() - start
        return trees

    def callback(self, packed: jax.Array) -> jax.Array:
        """The same inside a jitted program."""
        shape = jax.ShapeDtypeStruct((packed.shape[0], 3, self.nodes + 1), jnp.int32)
        return jax.pure_callback(self, shape, packed)
